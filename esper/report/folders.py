"""Reading of run folders in any state: finished, failed, incomplete or empty."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from esper.runtime.controller_names import LEARNED
from esper.runtime.run_folder import RunFolder, RunState

EMPTY, KILLED, UNKNOWN = "empty", "killed", "unknown"
"""States that no run writes: nothing recorded; marked as running, but its process is gone; no status."""

STATES: tuple[str, ...] = (*map(str, RunState), KILLED, UNKNOWN, EMPTY)


Record = Mapping[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """Content of the folder of one training run.

    Attributes:
        path: the folder.
        state: one of :data:`STATES`, or another that a run wrote.
        config: nested, as in ``config.yaml``; empty if that cannot be read.
        metrics: records of ``metrics.jsonl`` by rising iteration; values that are not finite are ``None``.
        result: ``result.json``; empty if there is none.
        status: ``status.json``; empty if there is none.
        notes: missing or damaged files in the folder.
    """

    path: Path
    state: str
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def overrides(self) -> list[str]:
        """Arguments of a job that was refused before it had a configuration; empty for any other run."""
        words = self.status.get("overrides")
        return [str(word) for word in words] if isinstance(words, list) and not self.config else []

    @property
    def seed(self) -> int | None:
        """RNG seed of the run."""
        words = [word.partition("=")[2] for word in self.overrides if word.lstrip("+").startswith("seed=")]
        seed = int(words[-1]) if words and words[-1].isdecimal() else self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def error(self) -> str | None:
        """Last line of its traceback, if it failed."""
        lines = str(self.status.get("traceback") or "").strip().splitlines()
        return lines[-1] if lines else None

    def column(self, key: str) -> list[float | None]:
        """Return one metric over iterations."""
        return [number(record.get(key)) for record in self.metrics]

    def last(self, key: str) -> float | None:
        """Return the last measured value of a metric."""
        return next((value for value in reversed(self.column(key)) if value is not None), None)

    def learned(self, key: str) -> float | None:
        """Return a mean of the learned controller in the closing table."""
        rows = self.result.get("controllers")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and row.get("name") == LEARNED:
                mean = row.get(key)
                return number(mean.get("mean")) if isinstance(mean, dict) else None
        return None


@dataclass(slots=True, kw_only=True)
class EvaluationFolder:
    """Content of the folder of one evaluation: its path, its state, and its ``result.json``."""

    path: Path
    state: str
    result: dict[str, Any]


def number(value: object) -> float | None:
    """Return a finite number, or ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def find(roots: Sequence[Path]) -> list[Path]:
    """Find run and evaluation folders at or below the given folders, each once, sorted by path."""
    found: dict[Path, Path] = {}
    for root in roots:
        for path in _walk(root):
            found.setdefault(path.resolve(), path)
    return sorted(found.values())


def _walk(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        path = Path(folder)
        if is_run(path, files, below):
            below.clear()
            yield path
        else:
            below[:] = sorted(name for name in below if not name.startswith("."))


def is_run(path: Path, files: Sequence[str], below: Sequence[str]) -> bool:
    """Return whether a folder with these files and subfolders belongs to a run."""
    folder = RunFolder(path)
    if folder.status_file.name in files or folder.metrics.name in files:
        return True
    return folder.config.name in files and folder.checkpoints.name in below


def read(path: Path) -> Run | EvaluationFolder:
    """Read one folder returned by :func:`find`."""
    folder, notes = RunFolder(path), list[str]()
    config, status, result = (_mapping(file, notes) for file in (folder.config, folder.status_file, folder.result))
    metrics = read_metrics(folder.metrics, notes)
    state = _state(status, bool(metrics))
    if "checkpoint" in config and "trainer" not in config:
        return EvaluationFolder(path=path, state=state, result=result)
    run = Run(path=path, state=state, config=config, metrics=metrics, result=result, status=status, notes=notes)
    if not config and not run.overrides:
        notes.append(f"{folder.config.name} is missing or empty")
    if state == RunState.FINISHED and not result:
        notes.append(f"finished, but {folder.result.name} is missing")
    return run


def _mapping(path: Path, notes: list[str]) -> dict[str, Any]:
    """Read a YAML or JSON file (JSON is parsed ten times faster); return an empty dict if it is missing or damaged."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        content = (
            json.loads(text)
            if path.suffix == ".json"
            else yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        )
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        notes.append(f"{path.name} cannot be read ({str(error).splitlines()[0]})")
        return {}
    if isinstance(content, dict):
        return content
    if content is not None:
        notes.append(f"{path.name} is not a table of keys and values")
    return {}


def read_metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read records by rising iteration. An invalid line is skipped and noted; of two lines for one iteration, as left
    by a run that was killed and resumed, the later one counts.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")
        return []
    found: dict[int, dict[str, Any]] = {}
    broken = 0
    for line in lines:
        record = parse(line)
        iteration = record.get("iteration") if record else None
        if record is None or isinstance(iteration, bool) or not isinstance(iteration, int):
            broken += bool(line.strip())
        else:
            found[iteration] = record
    if broken:
        notes.append(f"{path.name}: {broken} {'line is' if broken == 1 else 'lines are'} incomplete and left out")
    return [found[iteration] for iteration in sorted(found)]


def parse(line: str) -> dict[str, Any] | None:
    """Parse a line that holds a JSON object; return ``None`` for any other line."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _state(status: Record, any_metrics: bool) -> str:
    state = status.get("state")
    if not isinstance(state, str):
        return UNKNOWN if any_metrics else EMPTY
    return KILLED if state == RunState.RUNNING and is_gone(status) else state


def is_gone(status: Record) -> bool:
    """Return whether the process that wrote a status is known to be gone, which can be known only on its own
    machine.
    """
    pid = status.get("pid")
    if status.get("host") != platform.node() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
