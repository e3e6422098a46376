"""Configuration of a new policy's behaviour: the choices that its heads have, and the ops that it prefers at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import isfinite

from esper.growth.actions import (
    ALPHA_CURVE_NAMES,
    ALPHA_SPEED_NAMES,
    ALPHA_TARGETS,
    OP_NAMES,
    STYLE_NAMES,
    TEMPO_NAMES,
    Head,
    Op,
)
from esper.runtime.checks import distinct

_ALL: dict[Head, Sequence[str | float]] = {
    Head.OP: OP_NAMES,
    Head.STYLE: STYLE_NAMES,
    Head.TEMPO: TEMPO_NAMES,
    Head.ALPHA_TARGET: ALPHA_TARGETS,
    Head.ALPHA_SPEED: ALPHA_SPEED_NAMES,
    Head.ALPHA_CURVE: ALPHA_CURVE_NAMES,
}


@dataclass(kw_only=True, slots=True)
class ChoicesConfig:
    """Section ``policy.choices``: choices left to the policy's heads. A head with a single one has nothing to learn."""

    op: list[str] = field(default_factory=lambda: list(OP_NAMES))
    """Ops, WAIT among them."""
    style: list[str] = field(default_factory=lambda: list(STYLE_NAMES))
    """Alpha curve and blend algorithm of a germination, and algorithm of a new alpha target."""
    tempo: list[str] = field(default_factory=lambda: list(TEMPO_NAMES))
    """Lengths of the first ramp."""
    alpha_target: list[float] = field(default_factory=lambda: list(ALPHA_TARGETS))
    """Alphas at which a ramp ends."""
    alpha_speed: list[str] = field(default_factory=lambda: list(ALPHA_SPEED_NAMES))
    """Lengths of a fade-out or of a ramp to a new alpha target."""
    alpha_curve: list[str] = field(default_factory=lambda: list(ALPHA_CURVE_NAMES))
    """Shapes of a fade-out or of a ramp to a new alpha target."""

    def __post_init__(self) -> None:
        for head, known in _ALL.items():
            key, chosen = f"policy.choices.{head.name.lower()}", self._of(head)
            distinct(key, chosen)
            for value in chosen:
                if value not in known:
                    raise ValueError(f"{key} has {value}: choose from {', '.join(map(str, known))}")
        if Op.WAIT.name not in self.op:
            raise ValueError(f"policy.choices.op must have WAIT, which is always legal, got {self.op}")

    def indices(self) -> dict[Head, list[int]]:
        """Return the indices that are left to each head that lacks some of its choices."""
        return {
            head: [index for index, value in enumerate(known) if value in self._of(head)]
            for head, known in _ALL.items()
            if len(self._of(head)) < len(known)
        }

    def _of(self, head: Head) -> list[str | float]:
        chosen: list[str | float] = getattr(self, head.name.lower())
        return chosen


@dataclass(kw_only=True, slots=True)
class InitialOpLogits:
    """Section ``policy.initial_op_logits``: logits of the ops in a new policy. With 0 for all it is uniform over those
    that are legal; what it learns is added.
    """

    wait: float = 0.0
    """Logit of WAIT."""
    germinate: float = 0.0
    """Logit of GERMINATE."""
    cull: float = 0.0
    """Logit of CULL."""
    fossilize: float = 0.0
    """Logit of FOSSILIZE."""
    set_alpha_target: float = 0.0
    """Logit of SET_ALPHA_TARGET."""
    extend: float = 0.0
    """Logit of EXTEND."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isfinite(value):
                raise ValueError(f"policy.initial_op_logits.{item.name} must be finite, got {value}")

    def by_op(self) -> list[float]:
        """Return the logits in the order of ops."""
        return [getattr(self, op.name.lower()) for op in Op]
