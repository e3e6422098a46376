"""Runs on several ranks from one command: one folder, one result, and an end when a rank dies."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import hear_interrupts, run, started, wait_for

from esper.experiment.checkpoint import load_checkpoint
from esper.runtime.records import read_jsonl, without_times
from tests.warm import WarmPython

pytestmark = pytest.mark.slow

SMOKE = ("+preset=smoke", "env.mapping=matmul", "telemetry.console=plain", "evaluation.controllers=[learned,never]")
ENDLESS = (*SMOKE, "trainer.num_iterations=100000", "env.num_epochs=3", "telemetry.plots=false")
PAIR = "devices=[cpu,cpu]"
UNEVEN = "trainer.num_envs=5"


@pytest.fixture(scope="module")
def python(warm_python: WarmPython) -> str:
    return warm_python.executable


def command(python: str, run_dir: Path, *words: str) -> list[str]:
    return [python, "-m", "esper.train", *words, f"hydra.run.dir={run_dir}"]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@contextmanager
def running(python: str, run_dir: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run of two ranks that runs until it is ended, and wait for its second checkpoint."""
    arguments = command(python, run_dir, PAIR, *ENDLESS, *words)
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "preexec_fn": hear_interrupts}
    with started(arguments, **options) as launcher:
        wait_for(lambda: (run_dir / "checkpoints" / "iteration-00002.pt").exists(), launcher)
        yield launcher


def children_of(launcher: subprocess.Popen[str], warm_python: WarmPython) -> list[int]:
    """Return the process ids of a launcher's children, in rank order."""
    pid = warm_python.process_of(launcher.pid)
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def ranks_of(launcher: subprocess.Popen[str], warm_python: WarmPython) -> list[int]:
    """Return the process ids of the ranks themselves, which end shortly after their parents, by a signal."""
    return [warm_python.process_of(child) for child in children_of(launcher, warm_python)]


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


# ------------------------------------------------------------------------------------------------------- a good run


@pytest.fixture(scope="module")
def finished(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run on two ranks with uneven shares of the environments, and what it printed."""
    run_dir = tmp_path_factory.mktemp("ranks") / "pair"
    done = run(command(python, run_dir, PAIR, UNEVEN, "evaluation.num_hosts=3", *SMOKE))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return run_dir, done.stdout


def test_ranks_share_one_folder_and_say_who_holds_what(finished: tuple[Path, str]) -> None:
    run_dir, printed = finished
    assert "environments 0 to 2, 1 thread" in printed
    assert "environments 3 to 4, 1 thread" in printed
    assert printed.count("run folder") == 1
    assert [path.name for path in run_dir.parent.iterdir()] == ["pair"]
    assert read(run_dir / "status.json")["state"] == "finished"
    members = read(run_dir / "result.json")["ranks"]
    assert [member["environments"] for member in members] == [[0, 2], [3, 4]]
    assert [member["device"] for member in members] == ["cpu", "cpu"]
    assert [member["hosts_on"] for member in members] == ["cpu", "cpu"]


def test_metrics_and_events_are_those_of_all_environments(finished: tuple[Path, str]) -> None:
    run_dir, _ = finished
    records = read_jsonl(run_dir / "metrics.jsonl")
    num_epochs = 8
    assert [record["charts/env_epochs"] for record in records] == [5 * num_epochs, 10 * num_epochs]
    for record in records:
        assert record["charts/num_episodes"] == 5
        assert sum(record[key] for key in record if key.startswith("ops/attempted/")) == 5 * num_epochs
        assert all(value is None or math.isfinite(value) for value in record.values())
    ended = [event for event in read_jsonl(run_dir / "events.jsonl") if event["kind"] == "episode_ended"]
    for iteration in (1, 2):
        assert sorted(event["environment"] for event in ended if event["iteration"] == iteration) == [0, 1, 2, 3, 4]


def test_every_held_out_host_is_in_the_table_once_and_never_earns_nothing(finished: tuple[Path, str]) -> None:
    result = read(finished[0] / "result.json")
    for episodes in result["episodes"].values():
        assert sorted(episode["instance"] for episode in episodes) == [0, 1, 2]
    assert result["episodes"]["learned"][0]["instance"] == result["episodes"]["never"][0]["instance"]
    assert [episode["return"] for episode in result["episodes"]["never"]] == [0.0, 0.0, 0.0]


def test_the_checkpoint_took_in_every_ranks_observations(finished: tuple[Path, str]) -> None:
    record = load_checkpoint(finished[0] / "checkpoints" / "last.pt")
    assert float(record["normaliser"]["count"]) == 2 * 5 * 8


def test_the_same_ranks_repeat_the_same_run_in_processes_of_a_new_interpreter(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    again = tmp_path / "again"
    assert run(command(sys.executable, again, PAIR, UNEVEN, "evaluation.num_hosts=3", *SMOKE)).returncode == 0
    records = [
        [without_times(record) for record in read_jsonl(folder / "metrics.jsonl")] for folder in (finished[0], again)
    ]
    assert records[0] == records[1]


# --------------------------------------------------------------------------------------------------------- a bad end


@linux
def test_a_rank_that_dies_ends_the_run_with_its_name_and_a_usable_checkpoint(
    tmp_path: Path, python: str, warm_python: WarmPython
) -> None:
    run_dir = tmp_path / "run"
    with running(python, run_dir) as launcher:
        pids = ranks_of(launcher, warm_python)
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        wait_for(lambda: launcher.poll() is not None)
        assert launcher.stderr is not None
        message = launcher.stderr.read()
        assert launcher.returncode == 1
        assert "error: rank 1 on cpu was killed by SIGKILL" in message
        assert f"resume={run_dir} resumes from {run_dir}/checkpoints/last.pt" in message
        assert not any(alive(pid) for pid in pids)
    status = read(run_dir / "status.json")
    assert status["state"] == "failed"
    assert status["rank"] == 1
    record = load_checkpoint(run_dir / "checkpoints" / "last.pt")
    assert record["iteration"] >= 2
    assert all(value.isfinite().all() for value in record["policy"].values())


@linux
def test_ranks_end_when_their_launcher_is_gone(tmp_path: Path, python: str, warm_python: WarmPython) -> None:
    with running(python, tmp_path / "run") as launcher:
        pids = ranks_of(launcher, warm_python)
        launcher.kill()
        launcher.wait()
        wait_for(lambda: not any(alive(pid) for pid in pids))


@linux
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_end_reaches_every_rank_and_the_run_goes_on_later(
    tmp_path: Path, python: str, warm_python: WarmPython, kind: signal.Signals, code: int
) -> None:
    run_dir = tmp_path / "run"
    with running(python, run_dir) as launcher:
        pids = ranks_of(launcher, warm_python)
        launcher.send_signal(kind)
        wait_for(lambda: launcher.poll() is not None)
        assert not any(alive(pid) for pid in pids)
        assert launcher.returncode == code
    status = read(run_dir / "status.json")
    assert status["state"] == "preempted"
    record = load_checkpoint(run_dir / "checkpoints" / "last.pt")
    assert (record["iteration"], len(record["training"]["ranks"])) == (status["iteration"], 2)
    more = status["iteration"] + 1
    done = run([python, "-m", "esper.train", f"resume={run_dir}", f"trainer.num_iterations={more}"])
    assert done.returncode == 0, done.stderr
    assert f"resuming after iteration {status['iteration']}" in done.stdout
    assert [line["iteration"] for line in read_jsonl(run_dir / "metrics.jsonl")] == list(range(1, more + 1))
    assert read(run_dir / "status.json")["state"] == "finished"


@linux
def test_a_second_request_ends_ranks_at_once(tmp_path: Path, python: str, warm_python: WarmPython) -> None:
    run_dir = tmp_path / "run"
    with running(python, run_dir) as launcher:
        children, pids = children_of(launcher, warm_python), ranks_of(launcher, warm_python)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # ranks that are too busy to heed anything
        launcher.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert launcher.poll() is None, "ranks get the time that they need"
        launcher.send_signal(signal.SIGTERM)
        wait_for(lambda: launcher.poll() is not None)
        assert launcher.returncode == 143
        assert not any(alive(pid) for pid in children)
        wait_for(lambda: not any(alive(pid) for pid in pids))
    assert read(run_dir / "status.json")["state"] == "preempted"
    assert load_checkpoint(run_dir / "checkpoints" / "last.pt")["iteration"] >= 1


FAULTY = """
import esper.training.trainer

whole = esper.training.trainer.Trainer.iterate

def iterate(self):
    if self.iteration == 1 and self.ranks.rank == 1:
        raise RuntimeError("the sky fell")
    return whole(self)

esper.training.trainer.Trainer.iterate = iterate
"""


def test_an_exception_on_a_later_rank_is_the_runs_traceback(tmp_path: Path, python: str) -> None:
    (tmp_path / "faulty_plugin.py").write_text(FAULTY)
    run_dir = tmp_path / "run"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(command(python, run_dir, PAIR, *SMOKE, "plugins=[faulty_plugin]"), env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    assert "error: rank 1 on cpu failed (the sky fell)" in done.stderr
    status = read(run_dir / "status.json")
    assert status["state"] == "failed"
    assert 'raise RuntimeError("the sky fell")' in status["traceback"]
    assert len(read_jsonl(run_dir / "metrics.jsonl")) == 1


BROKEN_DEVICE = """
import torch
import torch.distributed as dist

whole = dist.all_reduce

def all_reduce(tensor, *rest, **options):
    if dist.get_rank() == 1 and tensor.numel() > 1000:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\\nIt may be reported late.")
    return whole(tensor, *rest, **options)

dist.all_reduce = all_reduce
"""


def test_a_device_that_breaks_in_an_exchange_is_its_ranks_failure_and_no_lost_peer(tmp_path: Path, python: str) -> None:
    (tmp_path / "broken_plugin.py").write_text(BROKEN_DEVICE)
    run_dir = tmp_path / "run"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(command(python, run_dir, PAIR, *SMOKE, "plugins=[broken_plugin]"), env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    told = (
        "error: rank 1 on cpu failed (CUDA error: an illegal memory access was encountered); the other ranks were ended"
    )
    assert done.stderr.splitlines()[-1] == told
    status = read(run_dir / "status.json")
    assert (status["state"], status["rank"]) == ("failed", 1)
    assert "PeerLost" not in status["traceback"]


# -------------------------------------------------------------------------------------------------- other launchers


def test_torchrun_starts_the_ranks_of_one_run(tmp_path: Path, python: str) -> None:
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "esper.train", *SMOKE, "devices=auto", "name=joined"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = run([*torchrun, *words], cwd=tmp_path, env=hidden)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["joined"]
    members = read(tmp_path / "outputs" / "joined" / "result.json")["ranks"]
    assert [member["environments"] for member in members] == [[0, 1], [2, 3]]


def test_under_torchrun_the_status_names_the_rank_that_failed_first(tmp_path: Path, python: str) -> None:
    (tmp_path / "faulty_plugin.py").write_text(FAULTY)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "esper.train", *SMOKE, "devices=auto", "name=joined", "plugins=[faulty_plugin]"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    assert run([*torchrun, *words], cwd=tmp_path, env=os.environ | hidden).returncode != 0
    status = read(tmp_path / "outputs" / "joined" / "status.json")
    assert (status["state"], status["rank"]) == ("failed", 1)
    assert "the sky fell" in status["traceback"]


def test_a_sweep_under_a_launcher_is_refused(tmp_path: Path, python: str) -> None:
    placed = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    words = [python, "-m", "esper.train", "-m", *SMOKE, "seed=0,1"]
    done = run(words, cwd=tmp_path, env=os.environ | placed)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a sweep (-m) cannot be run by 2 ranks at once")


def test_jobs_of_a_sweep_may_have_ranks_of_their_own(tmp_path: Path, python: str) -> None:
    done = run([python, "-m", "esper.train", "-m", *SMOKE, PAIR, "seed=0,1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = [path for path in (tmp_path / "multirun").glob("*/*") if path.is_dir()]
    assert len(folders) == 2
    assert all(len(read(folder / "result.json")["ranks"]) == 2 for folder in folders)


# -------------------------------------------------------------------------------------------------------------- GPUs


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_both_hold_hosts(tmp_path: Path, python: str) -> None:
    """Needs no data from outside."""
    run_dir = tmp_path / "run"
    done = run(command(python, run_dir, "devices=[0,1]", *SMOKE))
    assert done.returncode == 0, done.stderr
    members = read(run_dir / "result.json")["ranks"]
    assert [member["device"] for member in members] == ["cuda:0", "cuda:1"]
    assert [member["environments"] for member in members] == [[0, 1], [2, 3]]
    assert [member["hosts_on"] for member in members] == ["cuda:0", "cuda:1"]
    assert all(member["peak_gpu_bytes"] > 0 for member in members)
    assert [e["return"] for e in read(run_dir / "result.json")["episodes"]["never"]] == [0.0] * 4
