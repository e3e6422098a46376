"""State of a run, updated from the growing files of its folder."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

import yaml

from esper.report.folders import KILLED, is_gone, number, parse
from esper.runtime.records import Metrics
from esper.runtime.run_folder import RunFolder, RunState
from esper.telemetry.timeline import SlotTrace
from esper.watch.follow import Follower

EVENT_TAIL = 16 << 20
"""Bytes of an existing event file that are read at first, from its end."""
ETA_WINDOW = 10
NUM_TROUBLES = 4
TROUBLES = ("anomaly", "host_crashed")
WANTED = tuple(f'"kind": "{kind}"'.encode() for kind in ("stage_changed", "episode_ended", "level_changed", *TROUBLES))
"""Kinds of events to parse; most others are gate evaluations and are skipped."""


class Progress:
    """The current state of a run; :meth:`update` reads its folder again.

    Args:
        path: the run folder.

    Attributes:
        status: ``status.json``; empty if there is none.
        num_iterations, num_slots: settings in ``config.yaml``, ``None`` before it exists.
        history: metrics of every iteration.
        trace: current stage of every slot.
        counts: number of anomalies by name.
        troubles: descriptions of the last anomalies; equal ones of one iteration are merged.
        num_troubles: total number of such descriptions.
        level: level of telemetry, if it has changed.
        broken: number of lines that could not be parsed.
        partial: true if the beginning of the events was skipped.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.status: dict[str, Any] = {}
        self.num_iterations: int | None = None
        self.num_slots: int | None = None
        self.broken = 0
        self._metrics = Follower(self.folder.metrics)
        self._events = Follower(self.folder.events, EVENT_TAIL)
        self._configured = False
        self._begin_metrics()
        self._begin_events(partial=False)

    def _begin_metrics(self) -> None:
        self.history: list[dict[str, Any]] = []

    def _begin_events(self, *, partial: bool) -> None:
        self.trace = SlotTrace(from_start=not partial)
        self.counts: Counter[str] = Counter()
        self.troubles: deque[str] = deque(maxlen=NUM_TROUBLES)
        self.num_troubles = 0
        self.level: str | None = None
        self.partial = partial

    @property
    def state(self) -> str | None:
        """State of the run, ``None`` before it has one; ``killed`` if it says running but its process is gone."""
        state = self.status.get("state")
        if state == RunState.RUNNING and is_gone(self.status):
            return KILLED
        return state if isinstance(state, str) else None

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.state not in (None, RunState.RUNNING)

    @property
    def iteration(self) -> int:
        """Number of the last recorded iteration, 0 before the first."""
        return int(self.history[-1]["iteration"]) if self.history else 0

    @property
    def latest(self) -> Metrics:
        """Metrics of the last iteration."""
        return self.history[-1] if self.history else {}

    def eta(self) -> float | None:
        """Estimated seconds of training left, from the last iterations; ``None`` if unknown."""
        known = []
        for record in self.history[-ETA_WINDOW:]:
            parts = [number(record.get(key)) for key in ("time/rollout", "time/update")]
            known += [sum(part for part in parts if part is not None)] if None not in parts else []
        if not known or self.num_iterations is None:
            return None
        return sum(known) / len(known) * max(self.num_iterations - self.iteration, 0)

    def update(self) -> list[dict[str, Any]]:
        """Read the folder again and return the new metrics.

        Raises:
            OSError: a file exists but cannot be read.
        """
        # The status first, so that this update also reads what a run wrote before it ended.
        self.status = self.folder.read_status() or self.status
        if not self._configured:
            self._configure()
        self._read_events()
        return self._read_metrics()

    def _configure(self) -> None:
        try:
            config = yaml.load(self.folder.config.read_text(encoding="utf-8"), yaml.SafeLoader)
        except (FileNotFoundError, yaml.YAMLError):
            return
        if isinstance(config, dict):
            self.num_iterations = _nested(config, "trainer", "num_iterations")
            self.num_slots = _nested(config, "slots", "num_slots")
            self._configured = True

    def _read_metrics(self) -> list[dict[str, Any]]:
        news = self._metrics.read()
        if news.restarted:
            self._begin_metrics()
        fresh = []
        for line in news.lines:
            record = parse(line.decode("utf-8", errors="replace"))
            if record is None or not isinstance(record.get("iteration"), int):
                self.broken += 1
                continue
            # Numbers only: a view must not fail on other values.
            clean: dict[str, Any] = {key: number(value) for key, value in record.items()}
            fresh.append(clean | {"iteration": record["iteration"]})
        self.history += fresh
        return fresh

    def _read_events(self) -> None:
        news = self._events.read()
        if news.restarted or news.skipped:
            self._begin_events(partial=news.skipped)
        for line in news.lines:
            if any(kind in line for kind in WANTED):
                record = parse(line.decode("utf-8", errors="replace"))
                if record is None:
                    self.broken += 1
                else:
                    self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "level_changed":
            self.level = str(record.get("now"))
        elif kind in TROUBLES:
            name = str(record.get("name") if kind == "anomaly" else kind)
            self.counts[name] += 1
            words = f"iteration {record.get('iteration')}: {name}: {record.get('message') or record.get('reason')}"
            if words not in self.troubles:
                self.troubles.append(words)
                self.num_troubles += 1
        else:
            self.trace.take(record)


def _nested(config: dict[str, Any], section: str, key: str) -> int | None:
    inner = config.get(section)
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, int) else None
