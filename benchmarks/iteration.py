"""Time of a PPO iteration by part: training of hosts, their validation, and the control plane."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.records import Record
from benchmarks.scale import Scale, experiment_of
from benchmarks.timing import Clock
from esper.algorithms import PPO, RolloutBuffer
from esper.envs import growth, lifecycle
from esper.policy import GrowthPolicy
from esper.runtime.run_folder import RunFolder
from esper.telemetry.hub import TelemetryHub
from esper.training import trainer

SECTION = "iteration"
HOSTS = ("host training", "validation and contributions")
"""Parts outside the control plane: training and validation of hosts."""

REST = "everything else"
WHOLE = "whole iteration"
SHARE = "control plane"

# (owner, attribute) of the calls that make up each part of an iteration; none of these calls another one.
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    HOSTS[0]: ((growth, "train_epoch"), (growth, "probe_hosts")),
    HOSTS[1]: ((growth, "valuate"),),
    "observations": ((lifecycle, "observe"),),
    "masks": ((lifecycle, "legal"),),
    "policy": ((GrowthPolicy, "act"), (GrowthPolicy, "value")),
    "buffer": ((RolloutBuffer, "add"),),
    "update": ((PPO, "update"),),
}


def run(scale: Scale) -> list[Record]:
    """Time an iteration by part, in milliseconds, with an untrained policy; ratios are shares of the iteration."""
    experiment = experiment_of(scale.preset, f"trainer.num_iterations={scale.iterations}", *scale.overrides)
    with tempfile.TemporaryDirectory() as folder, TelemetryHub([]) as hub:
        # Computes the twins of the instances, which warms up the hosts' code.
        learner = trainer.Trainer(experiment, RunFolder.create(Path(folder) / "run", ""), hub)
        env = learner.env
        learner.begin()
        rounds = []
        for _ in range(scale.iterations):
            spent = dict.fromkeys(PARTS, 0.0)
            with _measured(spent, scale.clock):
                began = scale.clock()
                learner.iterate()
                whole = scale.clock() - began
            spent[REST] = whole - sum(spent.values())
            rounds.append(spent | {WHOLE: whole, SHARE: whole - sum(spent[part] for part in HOSTS)})
    shape = f"{learner.buffer.num_steps} epochs"
    return [_record(part, shape, env.num_envs, rounds) for part in rounds[0]]


def _record(part: str, shape: str, num_envs: int, rounds: list[dict[str, float]]) -> Record:
    times = [spent[part] for spent in rounds]
    return Record(
        section=SECTION,
        workload=shape,
        hosts=num_envs,
        implementation=part,
        median=float(np.median(times)) * 1e3,
        p95=float(np.quantile(times, 0.95)) * 1e3,
        ratio=float(np.median([spent[part] / spent[WHOLE] for spent in rounds])),
        unit="ms",
        rounds=len(times),
    )


@contextmanager
def _measured(spent: dict[str, float], clock: Clock) -> Iterator[None]:
    """Add the time spent in each part's calls to ``spent``."""
    with ExitStack() as stack:
        for part, calls in PARTS.items():
            for owner, name in calls:
                stack.enter_context(patch.object(owner, name, _timed(getattr(owner, name), part, spent, clock)))
        yield


def _timed(original: Callable[..., Any], part: str, spent: dict[str, float], clock: Clock) -> Callable[..., Any]:
    @wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return original(*args, **kwargs)
        finally:
            spent[part] += clock() - began

    return timed
