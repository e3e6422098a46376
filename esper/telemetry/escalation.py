"""From anomalies to the level of telemetry: look closer for a while, then fall back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from esper.runtime.records import Metrics
from esper.telemetry.anomalies import AnomalyLimits, accuracy_gain, detect
from esper.telemetry.events import Event, Level, LevelChanged


class Escalation:
    """Watches metrics; an anomaly raises the level to debug for some iterations, another one starts them anew.

    Every rank has one and sees the same metrics, so that all ranks keep the same events without asking each other.
    ``off`` stays off: what is not wanted at all is not wanted in trouble either.

    Args:
        base: level without anomalies, by name or value.
        iterations: how many iterations after an anomaly are kept at debug; 0 = none.
        limits: of the detectors; the defaults if not given.

    Attributes:
        level: what the next iteration is to be kept at.
    """

    def __init__(self, base: Level | str, iterations: int, limits: AnomalyLimits | None = None) -> None:
        self._base = Level[base] if isinstance(base, str) else base
        self._iterations = iterations
        self._limits = limits or AnomalyLimits()
        self._left = 0
        self._earlier: deque[float] = deque(maxlen=self._limits.accuracy_window)

    @property
    def level(self) -> Level:
        """Debug while something is looked at, else the base level."""
        return Level.debug if self._left and self._base is not Level.off else self._base

    def observe(self, iteration: int, metrics: Metrics) -> list[Event]:
        """Take in one iteration: its anomalies, and whether the next ones are kept at another level."""
        anomalies = detect(iteration, metrics, self._limits, tuple(self._earlier))
        gain = accuracy_gain(metrics)
        if gain is not None:
            self._earlier.append(gain)
        before = self.level
        self._left = self._iterations if anomalies else max(self._left - 1, 0)
        events: list[Event] = [*anomalies]
        if self.level is not before:
            names = ", ".join(dict.fromkeys(anomaly.name for anomaly in anomalies))
            reason = names or f"{self._iterations} iterations without an anomaly"
            events.append(LevelChanged(iteration=iteration, now=self.level.name, reason=reason))
        return events

    def state_dict(self) -> dict[str, Any]:
        """Plain values that :meth:`load_state_dict` takes: a resumed run sees what it would have seen."""
        return {"left": self._left, "earlier": list(self._earlier)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one stood."""
        self._left = int(state["left"])
        self._earlier = deque(map(float, state["earlier"]), maxlen=self._limits.accuracy_window)
