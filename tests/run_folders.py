"""Run folders in the form that runs write, made instantly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Values = Callable[[int], float | None]


def config(seed: int = 0, **changes: object) -> dict[str, Any]:
    """A configuration like those that runs save; ``ppo__ent_coef=0.1`` changes ``ppo.ent_coef``."""
    whole: dict[str, Any] = {
        "seed": seed,
        "devices": "cpu",
        "name": f"digits-seed{seed}",
        "task": {"name": "digits", "batch_size": 64},
        "instances": {"families": {"intact": 1.0}},
        "env": {"num_epochs": 5, "mapping": "matmul"},
        "slots": {"num_slots": 3, "ids": None, "max_developing": 3, "max_seeds": 3},
        "ppo": {"ent_coef": 0.02, "lr": 0.001},
        "trainer": {"num_envs": 4, "num_steps": 5, "num_iterations": 4},
        "telemetry": {"level": "normal"},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        inner = whole
        for section in sections:
            inner = inner[section]
        inner[name] = value
    return whole


def metrics(iteration: int, gain: float | None = 1.0) -> dict[str, Any]:
    """One line of ``metrics.jsonl``."""
    return {
        "iteration": iteration,
        "charts/episodic_return": gain,
        "charts/episodic_return_sem": 0.1,
        "charts/final_val_accuracy": 0.7,
        "charts/never_val_accuracy": 0.6,
        "charts/env_epochs": 20 * iteration,
        "charts/SPS": 100.0,
        "charts/added_parameters": 50.0,
        "charts/num_fossilized": 0.5,
        "ops/choice_share/WAIT": 0.6,
        "ops/choice_share/GERMINATE": 0.4,
        "stages/DORMANT": 0.75,
        "stages/TRAINING": 0.25,
        "time/rollout": 2.0,
        "time/update": 1.0,
    }


def result(gain: float = 1.0, **more: object) -> dict[str, Any]:
    """The parts of ``result.json`` that a report reads."""
    means = {"episode_return": gain, "val_accuracy": 0.7, "test_accuracy": 0.65, "added_parameters": 40.0}
    return {
        "controllers": [{"name": "learned", **{key: {"mean": value, "sem": None} for key, value in means.items()}}],
        "episodes": {"learned": [{"relative_flops": 1.5}, {"relative_flops": 2.5}]},
        "wall_seconds": 12.0,
        "git_sha": "abc",
        "git_dirty": False,
        **more,
    }


def stage(environment: int, epoch: int, slot: str, before: str, after: str, blueprint: str | None) -> dict[str, Any]:
    """A ``stage_changed`` record."""
    return {
        "kind": "stage_changed", "environment": environment, "iteration": 1, "epoch": epoch, "slot": slot,
        "blueprint": blueprint, "before": before, "after": after,
    }  # fmt: skip


EPISODE: tuple[dict[str, Any], ...] = (
    stage(0, 1, "r0c1", "DORMANT", "GERMINATED", "norm"),
    stage(0, 1, "r0c1", "GERMINATED", "TRAINING", "norm"),
    stage(0, 3, "r0c1", "TRAINING", "BLENDING", "norm"),
    stage(0, 4, "r0c1", "BLENDING", "HOLDING", "norm"),
    stage(0, 5, "r0c1", "HOLDING", "FOSSILIZED", "norm"),
    {"kind": "episode_ended", "environment": 0, "iteration": 1, "episode_return": 1.0},
)


def lines(records: Sequence[Mapping[str, Any]]) -> str:
    """Format records as JSONL."""
    return "".join(json.dumps(record) + "\n" for record in records)


def make_run(
    path: Path,
    seed: int = 0,
    *,
    state: str | None = "finished",
    gain: float = 1.0,
    iterations: int = 4,
    values: Values | None = None,
    traceback: str | None = None,
    **changes: object,
) -> Path:
    """A run folder; only finished ones have a ``result.json``.

    Args:
        path: the folder.
        seed: of the run.
        state: in ``status.json``; ``None`` for no such file.
        gain: return, in training and held out.
        iterations: lines of ``metrics.jsonl``; 0 for no such file.
        values: returns of the iterations instead, if given.
        traceback: in ``status.json``.
        changes: of the configuration.
    """
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config(seed, **changes), sort_keys=False))
    if state is not None:
        record = {"state": state, "updated": "2026-01-01T00:00:00+00:00", "host": "elsewhere", "pid": 1}
        (path / "status.json").write_text(json.dumps(record | ({"traceback": traceback} if traceback else {})))
    if iterations:
        rows = [metrics(number, values(number) if values else gain) for number in range(1, iterations + 1)]
        (path / "metrics.jsonl").write_text(lines(rows))
        (path / "events.jsonl").write_text(lines(EPISODE))
    if state == "finished":
        (path / "result.json").write_text(json.dumps(result(gain)))
    return path
