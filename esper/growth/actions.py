"""The action vocabulary: eight categorical heads, their values, and rules for the heads that matter.

Axis legend: N = any leading shape (environments, or environments x steps), S = slots, B = blueprints.

An action is a row of eight indices, ``actions: int64 [N, 8]``, in the order of :data:`HEADS`. The hot path indexes the
tables of this module; :class:`FactoredAction` is a readable record for logs and users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the configuration imports this module, and help must not wait for torch
    import torch
    from torch import Tensor


class Op(IntEnum):
    """Operation that the controller requests. There is no ADVANCE: stages change automatically."""

    WAIT = 0
    GERMINATE = 1
    CULL = 2
    FOSSILIZE = 3
    SET_ALPHA_TARGET = 4
    EXTEND = 5


class Blueprint(IntEnum):
    """Built-in kinds of seed module, in the order of the policy's blueprint head."""

    NOOP = 0
    CONV_LIGHT = 1
    ATTENTION = 2
    NORM = 3
    DEPTHWISE = 4
    BOTTLENECK = 5
    CONV_SMALL = 6
    CONV_HEAVY = 7
    LORA = 8
    LORA_LARGE = 9
    MLP_SMALL = 10
    MLP = 11
    FLEX_ATTENTION = 12


class BlendAlgorithm(IntEnum):
    """Formula that combines a seed module's output with the host's feature (see :mod:`esper.growth.blending`)."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2


class AlphaCurve(IntEnum):
    """Shape of an alpha ramp; every curve starts at exactly 0 and ends at exactly 1."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


class Style(IntEnum):
    """Alpha curve and blend algorithm as one choice, so that no invalid pair exists."""

    SIGMOID_ADD = 0
    LINEAR_ADD = 1
    LINEAR_MULTIPLY = 2
    GATED_GATE = 3


class Tempo(IntEnum):
    """Length of the first blending ramp."""

    FAST = 0
    STANDARD = 1
    SLOW = 2


class AlphaTarget(IntEnum):
    """Alpha at which a ramp ends."""

    HALF = 0
    MOST = 1
    FULL = 2


class AlphaSpeed(IntEnum):
    """Length of a later ramp: a new alpha target, or a fade-out."""

    INSTANT = 0
    FAST = 1
    MEDIUM = 2
    SLOW = 3


class Head(IntEnum):
    """Columns of an action row."""

    OP = 0
    SLOT = 1
    BLUEPRINT = 2
    STYLE = 3
    TEMPO = 4
    ALPHA_TARGET = 5
    ALPHA_SPEED = 6
    ALPHA_CURVE = 7


HEADS: tuple[str, ...] = tuple(head.name.lower() for head in Head)
NUM_HEADS = len(HEADS)
NUM_OPS = len(Op)

OP_NAMES: tuple[str, ...] = tuple(op.name for op in Op)
BLUEPRINT_IDS: tuple[str, ...] = tuple(blueprint.name.lower() for blueprint in Blueprint)
NUM_BLUEPRINTS = len(BLUEPRINT_IDS)

STYLE_NAMES: tuple[str, ...] = tuple(style.name for style in Style)
STYLE_ALGORITHMS: tuple[BlendAlgorithm, ...] = (
    BlendAlgorithm.ADD,
    BlendAlgorithm.ADD,
    BlendAlgorithm.MULTIPLY,
    BlendAlgorithm.GATE,
)
STYLE_CURVES: tuple[AlphaCurve, ...] = (
    AlphaCurve.SIGMOID,
    AlphaCurve.LINEAR,
    AlphaCurve.LINEAR,
    AlphaCurve.LINEAR,
)
TEMPO_NAMES: tuple[str, ...] = tuple(tempo.name for tempo in Tempo)
TEMPO_EPOCHS: tuple[int, ...] = (3, 5, 8)
ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
ALPHA_SPEED_NAMES: tuple[str, ...] = tuple(speed.name for speed in AlphaSpeed)
ALPHA_SPEED_EPOCHS: tuple[int, ...] = (0, 3, 5, 8)
ALPHA_CURVE_NAMES: tuple[str, ...] = tuple(curve.name for curve in AlphaCurve)

OP_WAIT, OP_GERMINATE, OP_CULL, OP_FOSSILIZE, OP_SET_ALPHA_TARGET, OP_EXTEND = (int(op) for op in Op)

OP_HEADS: dict[Op, tuple[Head, ...]] = {
    Op.WAIT: (Head.OP,),
    Op.GERMINATE: (Head.OP, Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET),
    Op.CULL: (Head.OP, Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE),
    Op.FOSSILIZE: (Head.OP, Head.SLOT),
    Op.SET_ALPHA_TARGET: (
        Head.OP,
        Head.SLOT,
        Head.STYLE,
        Head.ALPHA_TARGET,
        Head.ALPHA_SPEED,
        Head.ALPHA_CURVE,
    ),
    Op.EXTEND: (Head.OP, Head.SLOT),
}
"""Heads that can matter for each op; everything else derives from this table."""


@cache
def op_head_table(device: torch.device) -> Tensor:
    """Return :data:`OP_HEADS` as a tensor on a device, ``bool [6, 8]``."""
    import torch

    return torch.tensor([[head in OP_HEADS[op] for head in Head] for op in Op], device=device)


def head_sizes(num_slots: int, num_blueprints: int) -> tuple[int, ...]:
    """Return the number of choices of each head, in head order."""
    return (
        NUM_OPS,
        num_slots,
        num_blueprints,
        len(Style),
        len(Tempo),
        len(AlphaTarget),
        len(AlphaSpeed),
        len(AlphaCurve),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMasks:
    """Masks of legal choices, and the alphas that decide which heads matter.

    Attributes:
        op: ``bool [N, 6]``; WAIT is always legal.
        slot: ``bool [N, 6, S]``, the slots on which each op is legal. ``op[n, o]`` implies a legal slot for every op
            but WAIT, whose rows are all false.
        blueprint: ``bool [N, S, B]``, blueprints that fit each slot.
        alpha: ``float [N, S]``, present alpha of each slot.

    All choices of the heads without a mask (style, tempo, alpha target, speed and curve) are always legal.
    """

    op: Tensor
    slot: Tensor
    blueprint: Tensor
    alpha: Tensor

    def __getitem__(self, index: Tensor | slice | int) -> ActionMasks:
        """Select rows of the first axis."""
        return ActionMasks(
            op=self.op[index], slot=self.slot[index], blueprint=self.blueprint[index], alpha=self.alpha[index]
        )

    def first_blueprints(self, count: int) -> ActionMasks:
        """Leave out all blueprints but the first ``count``."""
        return ActionMasks(op=self.op, slot=self.slot, blueprint=self.blueprint[..., :count], alpha=self.alpha)

    def to(self, device: torch.device) -> ActionMasks:
        """Copy the masks from the CPU to a device, without waiting for it."""
        return ActionMasks(
            op=self.op.to(device, non_blocking=True),
            slot=self.slot.to(device, non_blocking=True),
            blueprint=self.blueprint.to(device, non_blocking=True),
            alpha=self.alpha.to(device, non_blocking=True),
        )


def relevance(op: Tensor, alpha: Tensor, alpha_speed: Tensor) -> Tensor:
    """Return which heads affect the outcome.

    CULL's speed and curve matter only if the module has alpha > 0; any curve only if the speed is not INSTANT.

    Args:
        op: ``int64 [N]``.
        alpha: ``float [N]``, alpha of the chosen slot.
        alpha_speed: ``int64 [N]``, the chosen speed.

    Returns:
        ``bool [N, 8]``.
    """
    relevant = op_head_table(op.device)[op].clone()  # of a single op it would be a view of the table
    fades = (op != OP_CULL) | (alpha > 0)
    relevant[..., Head.ALPHA_SPEED] &= fades
    relevant[..., Head.ALPHA_CURVE] &= fades & (alpha_speed != AlphaSpeed.INSTANT)
    return relevant


def canonical(actions: Tensor, alpha: Tensor) -> Tensor:
    """Set every head that does not matter to index 0.

    Args:
        actions: ``int64 [N, 8]``.
        alpha: ``float [N, S]``, present alpha of each slot.

    Returns:
        ``int64 [N, 8]``, a new tensor.
    """
    chosen_alpha = alpha.gather(-1, actions[..., Head.SLOT, None]).squeeze(-1)
    return actions * relevance(actions[..., Head.OP], chosen_alpha, actions[..., Head.ALPHA_SPEED])


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoredAction:
    """Readable record of one action. Heads that did not matter are ``None``."""

    op: str
    slot: str | None = None
    blueprint: str | None = None
    style: str | None = None
    tempo: str | None = None
    alpha_target: float | None = None
    alpha_speed: str | None = None
    alpha_curve: str | None = None


def describe(
    action: Sequence[int], alpha: float, slot_ids: Sequence[str], blueprint_ids: Sequence[str]
) -> FactoredAction:
    """Make a readable record of one action row.

    Args:
        action: eight indices in head order.
        alpha: alpha of the slot the action names.
        slot_ids: slot ids in canonical order.
        blueprint_ids: blueprint ids in index order, those of plugins included.
    """
    import torch

    op = Op(action[Head.OP])
    relevant = relevance(torch.tensor(op), torch.tensor(alpha), torch.tensor(action[Head.ALPHA_SPEED])).tolist()
    values: tuple[object, ...] = (
        op.name,
        slot_ids[action[Head.SLOT]],
        blueprint_ids[action[Head.BLUEPRINT]],
        STYLE_NAMES[action[Head.STYLE]],
        TEMPO_NAMES[action[Head.TEMPO]],
        ALPHA_TARGETS[action[Head.ALPHA_TARGET]],
        ALPHA_SPEED_NAMES[action[Head.ALPHA_SPEED]],
        ALPHA_CURVE_NAMES[action[Head.ALPHA_CURVE]],
    )
    fields = {name: value for name, value, matters in zip(HEADS, values, relevant, strict=True) if matters}
    return FactoredAction(**fields)  # type: ignore[arg-type]


def encode(action: FactoredAction, slot_ids: Sequence[str], blueprint_ids: Sequence[str]) -> Tensor:
    """Convert an action from its readable record to a row ``int64 [8]``; inverse of :func:`describe`.

    ``None`` means the value that rule-based controllers use: LINEAR_ADD, FAST, alpha target 1, INSTANT, LINEAR.

    Raises:
        ValueError: a name or number that its head does not have, or an op without the blueprint or slot that it needs.
    """
    import torch

    heads: dict[Head, tuple[object, Sequence[object], object]] = {
        Head.OP: (action.op, OP_NAMES, None),
        Head.SLOT: (action.slot, slot_ids, None),
        Head.BLUEPRINT: (action.blueprint, blueprint_ids, None),
        Head.STYLE: (action.style, STYLE_NAMES, Style.LINEAR_ADD.name),
        Head.TEMPO: (action.tempo, TEMPO_NAMES, Tempo.FAST.name),
        Head.ALPHA_TARGET: (action.alpha_target, ALPHA_TARGETS, 1.0),
        Head.ALPHA_SPEED: (action.alpha_speed, ALPHA_SPEED_NAMES, AlphaSpeed.INSTANT.name),
        Head.ALPHA_CURVE: (action.alpha_curve, ALPHA_CURVE_NAMES, AlphaCurve.LINEAR.name),
    }
    row = torch.zeros(NUM_HEADS, dtype=torch.int64)
    for head, (given, choices, usual) in heads.items():
        if head is not Head.OP and head not in OP_HEADS[Op(int(row[Head.OP]))]:
            continue
        value = usual if given is None else given
        if value not in choices:
            raise ValueError(f"{head.name.lower()}={value!r}: choose from {', '.join(map(str, choices))}")
        row[head] = list(choices).index(value)
    return row


_ENUMS = (Op, Blueprint, BlendAlgorithm, AlphaCurve, Style, Tempo, AlphaTarget, AlphaSpeed, Head)


def _tables_match_enums() -> bool:
    return (
        len(STYLE_ALGORITHMS) == len(STYLE_CURVES) == len(Style)
        and len(TEMPO_EPOCHS) == len(Tempo)
        and tuple(OP_HEADS) == tuple(Op)
        and len(ALPHA_TARGETS) == len(AlphaTarget)
        and len(ALPHA_SPEED_EPOCHS) == len(AlphaSpeed)
        and len(head_sizes(1, NUM_BLUEPRINTS)) == NUM_HEADS
        and all(list(enum) == list(range(len(enum))) for enum in _ENUMS)
    )


assert _tables_match_enums(), "action tables and enums disagree"
