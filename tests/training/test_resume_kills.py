"""Runs that are stopped and killed at random points, as a scheduler and a power cut do: the same runs in the end.

Processes are forked from one that has imported everything, since importing takes longer than running.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import SMALL
from processes import code_of, together, wait_for
from resuming import different_runs

import esper.launch.spawn
from esper.config import Config, compose, from_yaml, to_yaml
from esper.envs.growth import GrowthEnv
from esper.experiment.checkpoint import load_checkpoint
from esper.launch.entries import TRAIN
from esper.runtime.placement import Placement
from esper.runtime.ranks import Ranks
from esper.runtime.run_folder import RunCondition, RunFolder
from esper.training.run import train
from esper.training.start import find_start

pytestmark = pytest.mark.slow

WORDS = (
    *SMALL,
    "env.num_epochs=6",
    "trainer.num_envs=4",
    "trainer.num_steps=4",
    "trainer.num_iterations=8",
    "trainer.checkpoint_every=3",
    "evaluation.num_hosts=4",
    "evaluation.controllers=[learned,never]",
    "telemetry.plots=false",
    "devices=auto",
)
NUM_STEPS = 32
STEP_SECONDS = 0.05
"""Every step takes at least so long, so that a signal at a random time meets every part of a run."""

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["esper.training.run", "esper.launch.spawn", "esper.config", "esper.views.timeline_plot"]
)


def take_part(text: str, run_dir: Path, rank: int, size: int, rendezvous: str) -> None:
    """Run one process of a run, as a launcher starts it."""
    torch.set_num_threads(1)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    step = GrowthEnv.step

    def slowly(env: GrowthEnv, actions: torch.Tensor) -> Any:
        time.sleep(STEP_SECONDS)
        return step(env, actions)

    GrowthEnv.step = slowly  # type: ignore[method-assign]
    config = from_yaml(text, Config)
    if size == 1:
        train(config, run_dir)
        return
    place = Placement(rank=rank, size=size, local_rank=rank, local_size=size, rendezvous=f"file://{rendezvous}")
    try:
        esper.launch.spawn.run_rank(TRAIN, config, run_dir, place)
    except BaseException as end:
        os._exit(
            end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 1
        )  # as esper.launch.rank does


def ranks_of(run_dir: Path, size: int, **changes: Any) -> list[ForkServerProcess]:
    """Return the processes, not started yet, of a run that starts or is resumed on some ranks."""
    config = replace(compose(*WORDS), resume="auto", **changes)
    rendezvous = tempfile.mktemp(prefix="rendezvous")
    return [
        context.Process(target=take_part, args=(to_yaml(config), run_dir, rank, size, rendezvous))
        for rank in range(size)
    ]


def finish(run_dir: Path, size: int, **changes: Any) -> None:
    with together(processes := ranks_of(run_dir, size, **changes)):
        assert [code_of(process) for process in processes] == [0] * size
    assert RunFolder(run_dir).condition() is RunCondition.FINISHED


def interrupt(
    run_dir: Path, size: int, kind: signal.Signals, delay: float, ready: Callable[[Path], bool] | None = None
) -> None:
    """Start or resume, and some time later send a signal: SIGTERM to one rank, SIGKILL to all."""
    is_ready = ready or running
    with together(processes := ranks_of(run_dir, size)):
        wait_for(lambda: is_ready(run_dir) or not all(process.is_alive() for process in processes))
        time.sleep(delay)
        for process in processes if kind is signal.SIGKILL else processes[-1:]:
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, kind)
        codes = [code_of(process) for process in processes]
    # Before and after its iterations a run ends at once, and a rank may find the other gone.
    assert set(codes) <= {0, 128 + kind if kind is signal.SIGTERM else -kind, *([1] if size > 1 else [])}, codes
    sound(run_dir)


def running(run_dir: Path) -> bool:
    folder = RunFolder(run_dir)
    return folder.condition() is RunCondition.RUNNING and folder.state is not None and folder.state.name == "RUNNING"


def sound(run_dir: Path) -> None:
    """Check that every file with a final name is complete, whatever was killed."""
    for path in (run_dir / "checkpoints").glob("*.pt"):
        load_checkpoint(path)
    for name in ("status.json", "result.json"):
        if (run_dir / name).exists():
            json.loads((run_dir / name).read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the uninterrupted runs, on one rank and on two."""
    folder = tmp_path_factory.mktemp("whole")
    for size in (1, 2):
        finish(folder / str(size), size)
    return {size: folder / str(size) for size in (1, 2)}


@pytest.mark.parametrize(("number", "size"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)])
def test_stopped_and_killed_four_times_it_is_the_same_run(
    whole: dict[int, Path], tmp_path: Path, number: int, size: int
) -> None:
    """Twenty signals in all, SIGTERM and SIGKILL in turn, at times drawn from a seed."""
    draw = random.Random(number)
    for turn in range(4):
        kind = (signal.SIGTERM, signal.SIGKILL)[(number + turn) % 2]
        interrupt(tmp_path / "run", size, kind, draw.uniform(0.0, 0.4 * NUM_STEPS * STEP_SECONDS))
    finish(tmp_path / "run", size)
    assert different_runs(whole[size], tmp_path / "run") == []


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1)])
def test_another_number_of_ranks_goes_on_in_mid_episode_and_says_what_that_means(
    tmp_path: Path, before: int, now: int
) -> None:
    run_dir = tmp_path / "run"
    interrupt(run_dir, before, signal.SIGTERM, 0.0, lambda run: (run / "checkpoints" / "iteration-00003.pt").exists())
    assert RunFolder(run_dir).condition() is RunCondition.INTERRUPTED
    assert load_checkpoint(run_dir / "checkpoints" / "last.pt")["iteration"] < 8
    begun = find_start(RunFolder(run_dir), replace(compose(*WORDS), resume="auto"))
    assert (
        "environments are redistributed, and numbers will differ"
        in begun.lines(Ranks(size=now), torch.device("cpu"))[-1]
    )
    finish(run_dir, now)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, 9))
    for line in lines:
        assert sum(line[key] for key in line if key.startswith("ops/attempted/")) == 16
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    ended = [event["environment"] for event in events if event["kind"] == "episode_ended"]
    assert sorted(ended) == sorted(list(range(4)) * 5), "32 steps are five episodes of six, and a bit"
