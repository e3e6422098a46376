"""Bit-exact comparison of runs, checkpoints and live objects."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.experiment.checkpoint import load_checkpoint
from esper.runtime.records import read_jsonl, without_times

CLOCKS = {"stopwatch", "rollout_seconds", "host_seconds", "_stopwatch"}
"""Names of attributes that hold times."""

PROTOTYPES = {"host", "_host", "program", "_programs", "sections"}
"""Names of modules whose parameters are only a shape."""

GIVEN = {
    "loader",
    "_loader",
    "mapping",
    "pool",
    "hub",
    "folder",
    "_signals",
    "_vote",
    "_make_population",
    "_progress",
}
"""Names of attributes that a run receives on construction, and that do not change except for what can be recomputed."""

COUNTED = {"_num_trained"}
"""Names of attributes that are counted from others when first asked for."""

RESULT_CLOCKS = ("wall_seconds", "env_epochs_per_second", "command", "git_sha", "git_dirty")


def differing(a: Any, b: Any, path: str = "", seen: set[int] | None = None) -> list[str]:
    """Find where two values differ: states, records, or whole objects with all their attributes; equal bits are
    equal.
    """
    seen = set() if seen is None else seen
    if type(a) is not type(b):
        return [f"{path}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        return [] if same else [path]
    if isinstance(a, float):
        return [] if a == b or (math.isnan(a) and math.isnan(b)) else [f"{path}: {a}, {b}"]
    if isinstance(a, torch.Generator):
        return differing(a.get_state(), b.get_state(), path)
    if isinstance(a, nn.Module | torch.optim.Optimizer):
        return differing(a.state_dict(), b.state_dict(), path)
    if isinstance(a, Mapping):
        if list(a) != list(b):
            return [f"{path}: {list(a)}, {list(b)}"]
        return [line for key in a if key not in CLOCKS for line in differing(a[key], b[key], f"{path}.{key}", seen)]
    if isinstance(a, list | tuple | deque):
        if len(a) != len(b):
            return [f"{path}: {len(a)}, {len(b)} entries"]
        parts = enumerate(zip(a, b, strict=True))
        return [line for number, pair in parts for line in differing(*pair, f"{path}[{number}]", seen)]
    if is_dataclass(a) or type(a).__module__.startswith("esper."):
        if id(a) in seen or (callable(a) and not hasattr(a, "__dict__")):
            return []
        seen.add(id(a))
        if not is_dataclass(a) and vars(a).keys() != vars(b).keys():
            return [f"{path}: {sorted(vars(a).keys() ^ vars(b).keys())}"]
        names = [item.name for item in fields(a)] if is_dataclass(a) else list(vars(a))
        left_out = CLOCKS | PROTOTYPES | GIVEN | COUNTED
        return [
            line
            for name in names
            if name not in left_out
            for line in differing(getattr(a, name), getattr(b, name), f"{path}.{name}", seen)
        ]
    if a is None or isinstance(a, bool | int | str):
        return [] if a == b else [f"{path}: {a}, {b}"]
    return []


def different_runs(a: Path, b: Path) -> list[str]:
    """Find where two run folders differ, except times; events must be equal to the byte."""
    found = differing(metrics_of(a), metrics_of(b), "metrics.jsonl")
    if (a / "events.jsonl").read_bytes() != (b / "events.jsonl").read_bytes():
        found.append("events.jsonl")
    names = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in (a, b)]
    if names[0] != names[1]:
        return [*found, f"checkpoints: {names}"]
    for name in names[0]:
        one, other = (load_checkpoint(folder / "checkpoints" / name) for folder in (a, b))
        for record in (one, other):
            record["config"].pop("name")
            record["config"]["trainer"].pop("num_iterations")  # those of a run that is prolonged know no better
            record.get("training", {}).pop("positions", None)
        found += differing(one, other, name)
    return found + differing(*(result_of(folder) for folder in (a, b)), "result.json")


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """Metrics without times."""
    return [without_times(record) for record in read_jsonl(run_dir / "metrics.jsonl")]


def result_of(run_dir: Path) -> dict[str, Any]:
    """The result without what depends on the clock or the checkout, ``{}`` if there is none."""
    path = run_dir / "result.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {key: value for key, value in found.items() if key not in RESULT_CLOCKS}
