"""Typed events. Each is a frozen record of plain values with a ``kind`` and the lowest level that records it.

``environment`` is an index into the vector environment, ``iteration`` one of training from 1, ``epoch`` a host epoch
within an episode from 1. Stages, ops, gates and blueprints are given by name. Events carry no times, so that two runs
with one seed write equal event files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from esper.runtime.records import json_safe


class Level(StrEnum):
    """Amount of telemetry to record: nothing, the lifecycle, or every action too."""

    off = "off"
    normal = "normal"
    debug = "debug"

    def keeps(self, event: type[Event]) -> bool:
        """Return whether this level records events of a type."""
        order = list(Level)
        return order.index(event.level) <= order.index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]
    level: ClassVar[Level] = Level.normal


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChanged(Event):
    """A slot changed from one lifecycle stage to another."""

    kind: ClassVar[str] = "stage_changed"

    environment: int
    iteration: int
    epoch: int
    slot: str
    blueprint: str | None
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvaluated(Event):
    """A gate of a slot was evaluated, with verdict and reason."""

    kind: ClassVar[str] = "gate_evaluated"

    environment: int
    iteration: int
    epoch: int
    slot: str
    gate: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnded(Event):
    """One host has been trained to its end, or crashed. Accuracies are fractions of 1, bits are per byte of text."""

    kind: ClassVar[str] = "episode_ended"

    environment: int
    iteration: int
    instance: int
    family: str
    episode_return: float
    val_accuracy: float
    test_accuracy: float | None
    val_bits: float | None
    added_parameters: int
    num_fossilized: int
    crashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapleyValue(Event):
    """Shapley value of a module at the end of its episode, in points.

    The values of an episode sum to the score with all its modules on minus that of its bare host.
    """

    kind: ClassVar[str] = "shapley_value"

    environment: int
    iteration: int
    instance: int
    slot: str
    blueprint: str | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCrashed(Event):
    """A host had a number that was not finite, which ended its own episode and no other.

    ``twin_crashed`` is true if its never-grown twin crashes too, so that no controller is to blame; ``None`` without
    twins.
    """

    kind: ClassVar[str] = "host_crashed"

    environment: int
    iteration: int
    epoch: int
    instance: int
    family: str
    reason: str
    twin_crashed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAction(Event):
    """One action as taken. ``masked`` is true for each head in which the mask removed choices.

    Values of heads that do not matter for the op are ``None``.
    """

    kind: ClassVar[str] = "last_action"
    level: ClassVar[Level] = Level.debug

    environment: int
    iteration: int
    epoch: int
    op: str
    slot: str | None
    blueprint: str | None
    style: str | None
    masked: Mapping[str, bool]
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioExplosion(Event):
    """Probability ratios of a minibatch exceeded their limits: ``count`` of them, with the details of the worst, worst
    first.

    An entry of ``worst`` names environment, step, head, op, old and new log-probability, advantage and ratio.
    """

    kind: ClassVar[str] = "ratio_explosion"

    iteration: int
    update_epoch: int
    minibatch: int
    count: int
    worst: tuple[Mapping[str, float | int | str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly(Event):
    """An unhealthy metric. ``name`` is the detector, ``value`` the offending number."""

    kind: ClassVar[str] = "anomaly"

    iteration: int
    name: str
    message: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChanged(Event):
    """Telemetry changes its level from the next iteration on, because of an anomaly or the end of an escalation."""

    kind: ClassVar[str] = "level_changed"

    iteration: int
    now: str
    reason: str


_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in Event.__subclasses__()}


def to_state(event: Event) -> dict[str, Any]:
    """Convert an event to plain values without loss; ``kind`` names its class."""
    return {"kind": event.kind, **asdict(event)}


def from_state(state: Mapping[str, Any]) -> Event:
    """Rebuild an event from :func:`to_state`."""
    values = dict(state)
    return _KINDS[values.pop("kind")](**values)


def to_record(event: Event) -> dict[str, Any]:
    """Convert an event to a JSON-safe dict, ``kind`` first; NaN and infinities become ``None``."""
    return {"kind": event.kind, **json_safe(event)}
