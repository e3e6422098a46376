"""What a finished run folder says, as plain tables: read from its files, which are the truth."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.telemetry.events import EpisodeEnded, StageChanged

MAX_ROWS = 5_000
"""Rows that a table keeps, the latest ones."""

TRANSITION = ("slot", "blueprint", "before", "after")
EPISODE = (
    "iteration",
    "environment",
    "instance",
    "family",
    "episode_return",
    "val_accuracy",
    "test_accuracy",
    "added_parameters",
    "num_fossilized",
    "crashed",
)
TIMELINE = ("iteration", "environment", "epoch", *TRANSITION)


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Named columns and their rows, of plain values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def lifecycle_tables(events: Path) -> dict[str, PlainTable]:
    """The life of seed modules in ``events.jsonl``; nothing where no event was kept.

    Returns:
        ``lifecycle/transitions`` (how often each slot went from which stage to which, by blueprint),
        ``lifecycle/episodes`` (one row per host) and ``timeline/last_iteration`` (its stage changes, one by one).
    """
    transitions: Counter[tuple[Any, ...]] = Counter()
    episodes: deque[tuple[Any, ...]] = deque(maxlen=MAX_ROWS)
    timeline: deque[tuple[Any, ...]] = deque(maxlen=MAX_ROWS)
    latest = 0
    for event in _events(events, (StageChanged.kind, EpisodeEnded.kind)):
        if event["kind"] == EpisodeEnded.kind:
            episodes.append(tuple(event[name] for name in EPISODE))
            continue
        transitions[tuple(event[name] for name in TRANSITION)] += 1
        if event["iteration"] > latest:
            latest = event["iteration"]
            timeline.clear()
        timeline.append(tuple(event[name] for name in TIMELINE))
    counted = sorted(((*key, count) for key, count in transitions.items()), key=lambda row: (-row[-1], str(row)))
    found = {
        "lifecycle/transitions": PlainTable((*TRANSITION, "count"), tuple(counted)),
        "lifecycle/episodes": PlainTable(EPISODE, tuple(episodes)),
        "timeline/last_iteration": PlainTable(TIMELINE, tuple(timeline)),
    }
    return {name: table for name, table in found.items() if table.rows}


def _events(path: Path, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Events of some kinds, one at a time: a long run's file does not fit into memory."""
    if not path.exists():
        return
    marks = tuple(f'"kind": "{kind}"' for kind in kinds)
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n") and any(mark in line for mark in marks):
                yield json.loads(line)


def controllers_table(result: Mapping[str, Any]) -> PlainTable:
    """The closing table of a ``result.json``, means only: of a run of training, or of an evaluation."""
    rows = [{key: _mean(value) for key, value in record.items()} for record in result["controllers"]]
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    return PlainTable(columns, tuple(tuple(row.get(column) for column in columns) for row in rows))


def closing_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The closing table as single numbers, ``closing/<controller>/<metric>``, for plots across runs."""
    return {
        f"closing/{record['name']}/{key}": mean
        for record in result["controllers"]
        for key, mean in ((key, _mean(value)) for key, value in record.items())
        if isinstance(mean, int | float)
    }


def _mean(value: Any) -> Any:
    """The middle of a mean with its error or of an interval; anything else as it is."""
    return value.get("mean", value.get("estimate")) if isinstance(value, Mapping) else value
