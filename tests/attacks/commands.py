"""The commands that attacks are made of, on a ``PATH`` of their own, around one preloaded interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import LIMIT, hear_interrupts, run, started

from tests.attacks.attack import OWN, TINY, Attack, Outcome, below

COMMANDS = ("python", "esper.train", "esper.evaluate", "esper.report", "esper.watch", "esper.dashboard")
TOOLS = ("at", "terminal")
RUNS = {
    "done": "esper.train $tiny name=done",
    "stopped": "at 'iter 1' TERM -- esper.train $tiny name=stopped trainer.num_iterations=3",
    "longer": "at 'iter 2' TERM -- esper.train $tiny name=longer trainer.num_iterations=3",
    "judged": "esper.evaluate checkpoint=outputs/done 'controllers=[learned,never]' num_hosts=2 name=judged",
}
"""Runs that attacks may be given in ``outputs/``, and how they came to be."""

ROOT = Path(__file__).parents[2]


@contextmanager
def commands(scratch: Path) -> Iterator[dict[str, str]]:
    """The environment in which commands are found, as long as their interpreter lives."""
    # The socket's path must be short, and pytest's folders may not be.
    path = scratch / "interpreter"
    binaries = scratch / "bin"
    binaries.mkdir()
    _install(binaries)
    environment = {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "HOME": str(scratch),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
        "ESPER_CACHE_DIR": str(scratch / "cache"),
        "ESPER_INTERPRETER": str(path),
        "ESPER_PYTHON": str(binaries / "python"),
        "ESPER_REAL_PYTHON": sys.executable,
        "tiny": TINY,
        "own": OWN,
    }
    order = [sys.executable, "-m", "tests.attacks.interpreter", str(path)]
    with started(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", "the interpreter does not start"
        _make_runs(scratch, environment)
        yield environment
        server.stdin.close()
        server.wait(LIMIT)


def _make_runs(scratch: Path, environment: dict[str, str]) -> None:
    """The runs that attacks may be given, made by the same commands."""
    for name, bash in RUNS.items():
        done = _bash(bash, environment, scratch)
        assert (scratch / "outputs" / name / "status.json").exists(), f"{bash}\n{done.stdout}\n{done.stderr}"


def _install(binaries: Path) -> None:
    here = Path(__file__).parent
    for source, names in (("program.py", COMMANDS), ("tools.py", TOOLS)):
        text = f"#!{os.path.realpath(sys.executable)} -IS\n{(here / source).read_text()}"
        for name in names:
            (binaries / name).write_text(text)
            (binaries / name).chmod(0o755)


def carry_out(attack: Attack, environment: dict[str, str], folder: Path) -> Outcome:
    """Do what an attack says, in a folder of its own; whatever it started has ended afterwards."""
    for name in attack.given:
        shutil.copytree(Path(environment["HOME"]) / "outputs" / name, folder / "outputs" / name)
    for name, content in attack.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = below(folder)
    done = _bash(attack.bash, environment, folder)
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr, folder=folder, before=before)


def _bash(command: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    options = {"stdin": subprocess.DEVNULL, "preexec_fn": hear_interrupts, "errors": "replace"}
    return run(["bash", "-c", command], env=environment, cwd=folder, **options)
