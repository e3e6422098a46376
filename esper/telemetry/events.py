"""Typed events. Each is a frozen record of plain values with a ``kind`` and the least level at which it is kept.

``environment`` is an index into the vector environment, ``iteration`` a PPO iteration from 1, ``epoch`` a host epoch
within an episode from 1. Stages, ops, gates and blueprints are given by name. Events carry no times, so that two runs
with one seed write equal event files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, ClassVar

from esper.growth.actions import HEADS, OP_HEADS, OP_NAMES, STYLE_NAMES, Head, Op
from esper.runtime.records import json_safe


class Level(IntEnum):
    """How much is kept: nothing, what happened, or every action too. Names are what users type."""

    off = 0
    normal = 1
    debug = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]
    level: ClassVar[Level] = Level.normal


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChanged(Event):
    """A slot went from one lifecycle stage to another."""

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
    """A gate was asked whether a slot may go on, and answered."""

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
    """Points that a module was worth at the end of its episode, sharing credit with the others there.

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
    """A number of a host was not finite, which ended its own episode and no other.

    ``twin_crashed`` tells whether its never-grown twin breaks down too, for which no controller is to blame; ``None``
    without twins.
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
    """One action as taken. ``masked`` tells per head whether the mask left fewer choices than the head has.

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

    @classmethod
    def from_indices(
        cls,
        action: Sequence[int],
        *,
        environment: int,
        iteration: int,
        epoch: int,
        slot_ids: Sequence[str],
        blueprint_ids: Sequence[str],
        masked: Sequence[bool],
        success: bool,
    ) -> LastAction:
        """The event of one action row.

        Args:
            action: eight indices in head order.
            environment, iteration, epoch: where and when.
            slot_ids: slot ids in canonical order.
            blueprint_ids: blueprint ids in index order, those of plugins included.
            masked: one flag per head, in head order.
            success: whether the action was executed.
        """
        heads = OP_HEADS[Op(action[Head.OP])]
        return cls(
            environment=environment,
            iteration=iteration,
            epoch=epoch,
            op=OP_NAMES[action[Head.OP]],
            slot=slot_ids[action[Head.SLOT]] if Head.SLOT in heads else None,
            blueprint=blueprint_ids[action[Head.BLUEPRINT]] if Head.BLUEPRINT in heads else None,
            style=STYLE_NAMES[action[Head.STYLE]] if Head.STYLE in heads else None,
            masked=dict(zip(HEADS, masked, strict=True)),
            success=success,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioExplosion(Event):
    """Probability ratios of a minibatch left the sane range: ``count`` of them, the worst in full, worst first.

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
    """A metric looks wrong. ``name`` is the detector, ``value`` what it saw."""

    kind: ClassVar[str] = "anomaly"

    iteration: int
    name: str
    message: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChanged(Event):
    """From the next iteration on, telemetry is kept at another level, because of an anomaly or the lack of one."""

    kind: ClassVar[str] = "level_changed"

    iteration: int
    now: str
    reason: str


_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in Event.__subclasses__()}


def to_state(event: Event) -> dict[str, Any]:
    """An event as plain values, nothing lost; ``kind`` names its class."""
    return {"kind": event.kind, **asdict(event)}


def from_state(state: Mapping[str, Any]) -> Event:
    """Inverse of :func:`to_state`."""
    values = dict(state)
    return _KINDS[values.pop("kind")](**values)


def to_record(event: Event) -> dict[str, Any]:
    """JSON-safe dict of an event, ``kind`` first; NaN and infinities become ``None``."""
    return {"kind": event.kind, **json_safe(event)}
