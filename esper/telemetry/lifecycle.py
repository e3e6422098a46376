"""Tables of the life of seed modules, from the events of a run folder."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.telemetry.events import Anomaly, EpisodeEnded, StageChanged

MAX_ROWS = 5_000
"""Largest number of rows in a table; the latest ones are kept."""

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
    """A table of plain values with named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def lifecycle_tables(events: Path) -> dict[str, PlainTable]:
    """Read the life of seed modules from ``events.jsonl``; return no tables if no event was recorded.

    Returns:
        ``lifecycle/transitions`` (number of stage changes of each slot by old stage, new stage and blueprint),
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


def changes_table(changes: Iterable[StageChanged]) -> PlainTable:
    """Tabulate stage changes, one by one; the latest :data:`MAX_ROWS` are kept."""
    rows = deque((tuple(getattr(change, name) for name in TIMELINE) for change in changes), maxlen=MAX_ROWS)
    return PlainTable(TIMELINE, tuple(rows))


def anomaly_counts(events: Path) -> Counter[str]:
    """Count the anomalies in ``events.jsonl`` by name."""
    return Counter(event["name"] for event in _events(events, (Anomaly.kind,)))


def _events(path: Path, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Iterate over events of some kinds, because a long run's file does not fit into memory."""
    if not path.exists():
        return
    marks = tuple(f'"kind": "{kind}"' for kind in kinds)
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n") and any(mark in line for mark in marks):
                yield json.loads(line)
