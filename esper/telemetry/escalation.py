"""Escalation of the telemetry level after anomalies, for a number of iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from esper.runtime.records import Metrics
from esper.telemetry.anomalies import AnomalyLimits, accuracy_gain, detect
from esper.telemetry.events import Event, Level, LevelChanged


class Escalation:
    """Telemetry level that an anomaly raises to debug for some iterations; another anomaly restarts the count.

    Every rank has one and sees the same metrics, so that all ranks record the same events without communication.
    ``off`` stays off.

    Args:
        base: level without anomalies.
        iterations: number of iterations after an anomaly that are recorded at debug; 0 = none.
        limits: limits of the detectors; the defaults if not given.

    Attributes:
        level: level of the next iteration.
    """

    def __init__(self, base: Level, iterations: int, limits: AnomalyLimits | None = None) -> None:
        self._base = base
        self._iterations = iterations
        self._limits = limits or AnomalyLimits()
        self._left = 0
        self._earlier: deque[float] = deque(maxlen=self._limits.accuracy_window)

    @property
    def level(self) -> Level:
        """Debug during an escalation, else the base level."""
        return Level.debug if self._left and self._base is not Level.off else self._base

    def observe(self, iteration: int, metrics: Metrics) -> list[Event]:
        """Check one iteration: return its anomalies, and a change of the level if there is one."""
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
        """Return plain values for :meth:`load_state_dict`, so that a resumed run behaves as if uninterrupted."""
        return {"left": self._left, "earlier": list(self._earlier)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by :meth:`state_dict`."""
        self._left = int(state["left"])
        self._earlier = deque(map(float, state["earlier"]), maxlen=self._limits.accuracy_window)
