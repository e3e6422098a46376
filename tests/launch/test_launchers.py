"""Real sweeps of real runs under every launcher: killed, refused, preempted and finished jobs are reported
correctly.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from processes import LIMIT, hear_interrupts, started, wait_for

from esper.runtime.records import read_jsonl
from tests.warm import WarmPython

pytestmark = pytest.mark.slow

LONG = 1800.0
WORDS = (
    "+preset=smoke",
    "env.mapping=matmul",
    "env.num_epochs=6",
    "evaluation.controllers=[learned]",
    "evaluation.num_hosts=2",
    "telemetry.plots=false",
    "telemetry.console=plain",
)


class Sweep:
    """``python -m esper.train -m`` in a separate folder."""

    def __init__(self, root: Path, python: WarmPython, environment: Mapping[str, str] = os.environ) -> None:
        self.root = root
        self._python = python
        self.dir = root / "multirun" / "mine"
        self._environment = dict(environment) | {"COLUMNS": "200"}

    def start(self, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
        command = [self._python.executable, "-m", "esper.train", "-m", *WORDS, "hydra.sweep.dir=multirun/mine", *words]
        return started(
            command,
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=hear_interrupts,
        )

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        """Interrupt every process of the terminal at once, as Ctrl-C does."""
        os.killpg(self._python.process_of(process.pid), signal.SIGINT)

    def __call__(self, *words: str) -> tuple[int, str]:
        with self.start(*words) as process:
            output, _ = process.communicate(timeout=LONG)
        return process.returncode, output

    def runs(self) -> dict[int, Path]:
        """Folder of each job by its seed."""
        found = (re.search(r"seed(\d+)-", path.name) for path in self.dir.glob("seed*"))
        return {int(match[1]): self.dir / match.string for match in found if match}

    def status(self, seed: int) -> dict[str, Any]:
        path = self.runs().get(seed, self.dir) / "status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def iterations(self, seed: int) -> list[int]:
        path = self.runs().get(seed, self.dir) / "metrics.jsonl"
        return [record["iteration"] for record in read_jsonl(path)] if path.exists() else []


@pytest.fixture
def sweep(tmp_path: Path, warm_python: WarmPython) -> Sweep:
    return Sweep(tmp_path, warm_python)


def test_a_sweep_of_four_with_a_bad_configuration_and_a_killed_job(sweep: Sweep) -> None:
    words = ("seed=0,-1,1,2", "trainer.num_iterations=4", "wandb.mode=offline", f"wandb.timeout={LIMIT}")
    with sweep.start(*words) as process:
        wait_for(lambda: len(sweep.iterations(1)) >= 2, process)
        os.kill(sweep.status(1)["pid"], signal.SIGKILL)
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 1, output
    assert "job 1 (seed=-1) is left out: seed must be at least 0, got -1" in output
    assert "was killed by SIGKILL" in output
    assert [sweep.status(seed)["state"] for seed in (0, 1, 2)] == ["finished", "failed", "finished"]
    finished = {seed: (sweep.runs()[seed] / "result.json").stat().st_mtime_ns for seed in (0, 2)}

    code, output = sweep(*words)
    assert code == 1, "one of them still cannot be run"
    assert "2 finished, 1 to be retried, 1 refused" in output
    assert sweep.status(1)["state"] == "finished"
    assert sweep.iterations(1) == [1, 2, 3, 4]
    assert {seed: (sweep.runs()[seed] / "result.json").stat().st_mtime_ns for seed in (0, 2)} == finished
    ids = {seed: (path / "wandb" / "run-id").read_text().strip() for seed, path in sweep.runs().items()}
    assert len(set(ids.values())) == 3
    segments = {seed: list(path.glob(f"wandb/offline-run-*-{ids[seed]}")) for seed, path in sweep.runs().items()}
    assert {seed: len(found) for seed, found in segments.items()} == {0: 1, 1: 2, 2: 1}


def test_two_sweeps_of_one_command_started_together_do_not_clash(sweep: Sweep) -> None:
    with sweep.start("seed=0,1") as first, sweep.start("seed=0,1") as second:
        outputs = [process.communicate(timeout=LONG)[0] for process in (first, second)]
    assert [sweep.status(seed)["state"] for seed in (0, 1)] == ["finished"] * 2, outputs
    assert [sweep.iterations(seed) for seed in (0, 1)] == [[1, 2]] * 2
    assert sorted(path.name.partition("-")[0] for path in sweep.dir.iterdir()) == ["seed0", "seed1"]


def test_jobs_run_side_by_side_with_ranks_of_their_own(sweep: Sweep) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs pip install '.[workers]'")
    code, output = sweep(
        "seed=0,1", "devices=[cpu,cpu]", "ppo.num_minibatches=1", "hydra/launcher=workers", "hydra.launcher.n_jobs=2"
    )
    assert code == 0, output
    for seed in (0, 1):
        result = json.loads((sweep.runs()[seed] / "result.json").read_text())
        assert len(result["ranks"]) == 2
        assert "iter 2/2" in (sweep.runs()[seed] / "output.log").read_text()
    assert "iter 2/2" not in output, "side by side, each prints into its own folder"


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_workers_that_are_asked_to_end_start_no_more_jobs_and_the_same_command_goes_on(
    sweep: Sweep, side_by_side: int
) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs pip install '.[workers]'")
    words = (
        "seed=0,1,2",
        "trainer.num_iterations=8",
        "hydra/launcher=workers",
        f"hydra.launcher.n_jobs={side_by_side}",
    )
    with sweep.start(*words) as process:
        wait_for(lambda: all(sweep.iterations(seed) for seed in range(side_by_side)), process)
        process.terminate()
        output, _ = process.communicate(timeout=LONG)
        assert process.returncode == 128 + signal.SIGTERM, output
        time.sleep(2.0)
    states = [sweep.status(seed).get("state") for seed in range(3)]
    assert states == ["preempted"] * side_by_side + [None] * (3 - side_by_side), output

    code, output = sweep(*words)
    assert code == 0, output
    assert f"{side_by_side} to be continued" in output
    assert [sweep.iterations(seed) for seed in range(3)] == [list(range(1, 9))] * 3


PROCESSES = ("trainer.num_iterations=8", "hydra/launcher=processes")


def test_processes_of_an_interrupted_sweep_leave_checkpoints_and_the_same_command_goes_on(sweep: Sweep) -> None:
    pytest.importorskip("submitit", reason="needs pip install '.[slurm]'")
    with sweep.start("seed=0,1", *PROCESSES) as process:
        wait_for(lambda: all(sweep.iterations(seed) for seed in (0, 1)), process)
        sweep.interrupt(process)
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signal.SIGINT, output
    assert "Traceback" not in output
    before = {seed: sweep.iterations(seed) for seed in (0, 1)}
    assert [sweep.status(seed)["state"] for seed in (0, 1)] == ["preempted"] * 2, "the sweep has waited for them"
    assert [(path / "checkpoints" / "last.pt").exists() for path in sweep.runs().values()] == [True] * 2

    code, output = sweep("seed=0,1", *PROCESSES)
    assert code == 0, output
    assert "2 to be continued" in output
    assert [sweep.iterations(seed) for seed in (0, 1)] == [list(range(1, 9))] * 2
    logs = "".join(path.read_text() for path in sweep.dir.glob(".submitit/*/*_log.out"))
    assert all(f"resuming after iteration {len(done)}" in logs for done in before.values())


def test_a_process_that_nears_its_time_limit_leaves_a_checkpoint_and_is_started_again(sweep: Sweep) -> None:
    pytest.importorskip("submitit", reason="needs pip install '.[slurm]'")
    with sweep.start("seed=0", *PROCESSES) as process:
        wait_for(lambda: sweep.iterations(0), process)
        first = sweep.status(0)["pid"]
        os.kill(first, signal.SIGUSR2)
        wait_for(lambda: sweep.status(0)["state"] == "preempted", process)
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0, output
    assert sweep.status(0)["state"] == "finished"
    assert sweep.status(0)["pid"] != first
    assert sweep.iterations(0) == list(range(1, 9))


def test_jobs_run_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs pip install '.[ray]'")
    # Ray keeps the key of its cluster there, and starts processes of its own.
    sweep = Sweep(tmp_path, WarmPython(sys.executable), os.environ | {"HOME": str(tmp_path)})
    code, output = sweep("seed=0,1", "hydra/launcher=ray_cluster", "+hydra.launcher.ray.init.num_cpus=2")
    assert code == 0, output
    assert [sweep.status(seed)["state"] for seed in (0, 1)] == ["finished"] * 2
    assert "2 jobs, 2 new" in output


SLURM = ("seed=0", "trainer.num_iterations=40", "hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1")


@pytest.fixture
def slurm() -> Iterator[slurm_cluster.Cluster]:
    """A cluster of this machine; its paths must be short, for sockets."""
    pytest.importorskip("submitit", reason="needs pip install '.[slurm]'")
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-") as root, slurm_cluster.cluster(Path(root)) as found:
        yield found


def test_a_preempted_slurm_job_goes_back_to_the_queue_and_on_in_its_folder(
    slurm: slurm_cluster.Cluster, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path, WarmPython(sys.executable), slurm.environment)  # jobs are no processes of this one
    with sweep.start(*SLURM) as process:
        wait_for(lambda: len(sweep.iterations(0)) >= 2, process)
        [job] = set(slurm.tell("squeue", "--noheader", "--format=%A").split())
        slurm.tell("scancel", "--signal=USR2", job)
        wait_for(lambda: sweep.status(0)["state"] == "preempted", process)
        before = sweep.iterations(0)
        assert len(before) < 40
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0, output
    assert sweep.status(0)["state"] == "finished"
    assert sweep.iterations(0) == list(range(1, 41))
    assert "Restarts=1 " in slurm.tell("scontrol", "show", "job", job)
    [log] = sweep.dir.glob(".submitit/*/*_log.out")
    assert f"resuming after iteration {before[-1]}" in log.read_text()


def test_a_slurm_job_that_is_cancelled_leaves_a_checkpoint_and_is_not_started_again(
    slurm: slurm_cluster.Cluster, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path, WarmPython(sys.executable), slurm.environment)  # jobs are no processes of this one
    with sweep.start(*SLURM) as process:  # killed at the end: a cluster without accounting does not tell submitit
        wait_for(lambda: len(sweep.iterations(0)) >= 2, process)
        [job] = set(slurm.tell("squeue", "--noheader", "--format=%A").split())
        slurm.tell("scancel", job)
        wait_for(lambda: sweep.status(0)["state"] == "preempted", process)
        assert (sweep.runs()[0] / "checkpoints" / "last.pt").exists()
        wait_for(lambda: "JobState=CANCELLED" in slurm.tell("scontrol", "show", "job", job), process)
