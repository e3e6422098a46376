"""A request to end is heeded at every moment of a run: its own exit code, no traceback, and a folder that says so.

Runs are forked from a process that has imported everything, and ask themselves to end at a given point.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
from helpers import SMALL

import esper.launch.begin
from esper.runtime.preemption import SIGNALS, Preempted, StopSignals

ROOT = Path(esper.launch.begin.__file__).parents[2]
WORDS = (*SMALL, "evaluation.num_hosts=2", "evaluation.controllers=[learned,never]", "telemetry.console=plain")

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["esper.training.run", "esper.evaluation.run", "esper.launch.cli", "esper.views.timeline_plot"]
)

PHASES = {
    "composing": ("esper.launch.cli:_load_jobs", None),
    "checking": ("esper.experiment.preflight:preflight", None),
    "calibrating": ("esper.training.run:build_experiment", None),
    "claiming the folder": ("esper.training.run:_claim", "preempted"),
    "saying where": ("esper.training.run:_announce", "preempted"),
    "reaching W&B": ("esper.training.run:_mirror", "preempted"),
    "opening files": ("esper.training.run:_watchers", "preempted"),
    "growing twins": ("esper.training.trainer:Trainer.begin", "preempted"),
    "an iteration": ("esper.envs.growth:GrowthEnv.step", "preempted"),
    "a checkpoint": ("esper.training.trainer:save_checkpoint", "preempted"),
    "the closing comparison": ("esper.training.run:compare", "preempted"),
    "drawing": ("esper.views.plots:learning_curve", "preempted"),
    "the result": ("esper.runtime.run_folder:RunFolder.write_result", "finished"),
    "the closing table": ("esper.training.closing:closing_report", "finished"),
}
"""The activity when the signal comes, just after its first occurrence, and the final state of the folder."""


@pytest.fixture(autouse=True)
def signals_as_a_terminal_sends_them() -> Iterator[None]:
    """Whoever runs the tests may ignore some: ``nohup`` does, and a shell for what runs in the background."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ask_after(target: str, number: int) -> None:
    """Send this process a request to stop, once, after a function has returned."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    function, asked = getattr(owner, name), []

    def then_asked(*arguments: object, **options: object) -> object:
        result = function(*arguments, **options)
        if not asked:
            asked.append(True)
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, then_asked)


def run(words: list[str], said: str, target: str | None = None, number: int = 0) -> None:
    """Run one process of the command from its start."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if target is not None:
        ask_after(target, number)
    sys.argv = ["esper-train", *words]
    esper.launch.begin.train()


def code_of(words: list[str], said: Path, target: str | None = None, number: int = 0) -> int | None:
    return processes.run_to_its_end(context.Process(target=run, args=(words, str(said), target, number)))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "phase"), [(SIGNALS[i % 3], phase) for i, phase in enumerate(PHASES)])
def test_asked_to_end_at_any_moment_a_run_says_so_and_goes_on_later(
    tmp_path: Path, number: signal.Signals, phase: str
) -> None:
    (target, state), folder = PHASES[phase], tmp_path / "run"
    code = code_of([*WORDS, f"hydra.run.dir={folder}"], tmp_path / "said", target, number)
    said = (tmp_path / "said").read_text()
    assert code == 128 + number, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert ("stopped; resume=" in said) == (state == "preempted")
    if state is None:
        assert not (folder / "config.yaml").exists()
        return
    assert json.loads((folder / "status.json").read_text())["state"] == state
    if state == "preempted":
        assert code_of([f"resume={folder}"], tmp_path / "again") == 0, (tmp_path / "again").read_text()
        assert json.loads((folder / "status.json").read_text())["state"] == "finished"
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def forked(work: Callable[[], object]) -> int:
    """Return the exit code of a forked process, 99 if it ends with an exception other than an exit."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(work() is None) - 1
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 98
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("number", SIGNALS)
def test_while_imports_run_a_process_leaves_at_once_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    body = (
        f"import os, time\ntry:\n    os.kill(os.getpid(), {int(number)}); time.sleep(9)\nexcept BaseException: pass\n"
    )
    (tmp_path / "takes_long.py").write_text(body + "main = lambda: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert forked(lambda: esper.launch.begin.start("takes_long")) == 128 + number
    assert capfd.readouterr() == ("", "")


def test_processes_begin_before_they_import_what_takes_long() -> None:
    modules = (
        "esper.train, esper.evaluate, esper.launch.rank, esper.watch, esper.report, esper.dashboard, esper.launch.begin"
    )
    script = f"import sys, {modules}; print(*{{'torch', 'hydra', 'numpy', 'matplotlib'}} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = processes.run([sys.executable, "-c", script], env=environment, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_after_nohup_a_process_outlives_its_terminal(ignored: bool) -> None:
    def work() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        esper.launch.begin.begin()
        with StopSignals():
            os.kill(os.getpid(), signal.SIGHUP)

    assert forked(work) == (0 if ignored else 129)


def test_the_signal_of_a_closed_terminal_can_be_held_back_as_others_can() -> None:
    def work() -> None:
        with StopSignals() as signals, signals.deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.requested == signal.SIGHUP

    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(Preempted) as stopped:
        work()
    assert stopped.value.code == 129
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_two_interrupts_of_two_ranks_are_an_interrupt(tmp_path: Path) -> None:
    words = [
        *WORDS,
        "devices=[cpu,cpu]",
        "trainer.num_envs=4",
        "ppo.num_minibatches=1",
        f"hydra.run.dir={tmp_path}/run",
    ]
    said = tmp_path / "said"
    slow = [*words, "trainer.num_iterations=100000"]
    process = context.Process(target=run, args=(slow, str(said)))
    with processes.together([process]):
        last = tmp_path / "run" / "checkpoints" / "last.pt"
        processes.wait_for(lambda: last.exists() or not process.is_alive())
        assert process.is_alive(), said.read_text()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.001)
        os.kill(process.pid, signal.SIGINT)
        assert processes.code_of(process) == 130, said.read_text()
    assert "SIGTERM" not in said.read_text()
    assert "Traceback" not in said.read_text()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "preempted"
