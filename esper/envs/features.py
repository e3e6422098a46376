"""The table of observation features (v3): names, order, ranges. Code, tests and docs read it.

Layout: the base features; then those of slot 0, slot 1, …; then, if there are any, the probes of slot 0, slot 1, ….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.envs.history import HISTORY
from esper.growth import STAGE_NAMES
from esper.growth.actions import OP_NAMES

BOUND = 2.0
"""No feature leaves [-2, 2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of the observation.

    Attributes:
        name: slot features are prefixed by ``slot0.``, ``slot1.``, ….
        index: column.
        low, high: range, inclusive.
        continuous: whether a running normaliser applies; flags, one-hots and enum values stay as they are.
    """

    name: str
    index: int
    low: float
    high: float
    continuous: bool


# (name, low, high, continuous)
_Row = tuple[str, float, float, bool]


def _flag(name: str) -> _Row:
    return name, 0.0, 1.0, False


def _value(name: str, low: float, high: float) -> _Row:
    return name, low, high, True


_BASE: tuple[_Row, ...] = (
    _value("epoch", 0, 2),
    _value("val_loss", 0, 2),
    _value("val_loss_delta", -1, 1),
    _value("val_accuracy", 0, 1),
    _value("val_accuracy_delta", -1, 1),
    _value("plateau_epochs", 0, 1),
    _flag("stabilised"),
    *(_value(f"val_loss_{age}_ago", 0, 2) for age in reversed(range(HISTORY))),
    *(_value(f"val_accuracy_{age}_ago", 0, 1) for age in reversed(range(HISTORY))),
    _value("best_accuracy", 0, 1),
    _value("best_loss", 0, 2),
    _value("added_params", 0, 2),
    _value("live_share", 0, 1),
    _value("training_share", 0, 1),
    _value("blending_share", 0, 1),
    _value("holding_share", 0, 1),
    _flag("last_success"),
    *(_flag(f"last_op_{name.lower()}") for name in OP_NAMES),
)

_SLOT: tuple[_Row, ...] = (
    _flag("occupied"),
    *(_flag(f"stage_{name.lower()}") for name in STAGE_NAMES),
    _value("alpha", 0, 1),
    _value("alpha_target", 0, 1),
    _flag("alpha_mode"),
    _value("alpha_velocity", -1, 1),
    _value("time_to_target", 0, 2),
    _flag("algorithm"),
    _value("contribution", -2, 2),
    _value("contribution_velocity", -2, 2),
    _value("epochs_in_stage", 0, 2),
    _value("gradient_norm", 0, 1),
    _value("gradient_health", 0, 1),
    _value("previous_health", 0, 1),
    _flag("vanishing"),
    _flag("exploding"),
    _value("interaction", -1, 1),
    _value("boost", -1, 1),
    _value("alpha_upstream", 0, 1),
    _value("alpha_downstream", 0, 1),
    _value("freshness", 0, 1),
)

SILENT_STAGES = ("unknown", "dormant", "germinated")
"""Stages whose column never carries anything; it stays, as the layout is that of the enum.

UNKNOWN is what a corrupt record decodes to. A DORMANT slot is empty, and all its features are 0, this one too. A
GERMINATED module is in TRAINING when it is next seen: gate G1 is faced at the end of its first epoch, and only
parameters that are not finite keep it back.
"""

NUM_BASE_FEATURES = len(_BASE)
NUM_SLOT_FEATURES = len(_SLOT)
BASE_INDEX: dict[str, int] = {row[0]: index for index, row in enumerate(_BASE)}
SLOT_INDEX: dict[str, int] = {row[0]: index for index, row in enumerate(_SLOT)}
BASE_LOW, BASE_HIGH = (np.array([row[bound] for row in _BASE], dtype=np.float32) for bound in (1, 2))
SLOT_LOW, SLOT_HIGH = (np.array([row[bound] for row in _SLOT], dtype=np.float32) for bound in (1, 2))


def num_features(num_slots: int, num_probes: int = 0) -> int:
    """D = 31 + (30 + num_probes) S."""
    return NUM_BASE_FEATURES + (NUM_SLOT_FEATURES + num_probes) * num_slots


def feature_table(num_slots: int, probes: Sequence[str] = ()) -> tuple[Feature, ...]:
    """Every column in order.

    Args:
        num_slots: S.
        probes: names of the slot probes.

    Raises:
        ValueError: an unknown probe.
    """
    # Imported here: configuration asks for widths, and must not wait for all that measures.
    from esper.population.probes import chosen_probes

    rows = list(_BASE)
    for block in (_SLOT, [_value(name, -BOUND, BOUND) for name in chosen_probes(probes)]):
        rows += [(f"slot{slot}.{row[0]}", *row[1:]) for slot in range(num_slots) for row in block]
    return tuple(
        Feature(name=name, index=index, low=low, high=high, continuous=continuous)
        for index, (name, low, high, continuous) in enumerate(rows)
    )


def continuous_features(num_slots: int, probes: Sequence[str] = ()) -> Tensor:
    """``bool [D]``: the columns a running normaliser applies to."""
    return torch.tensor([feature.continuous for feature in feature_table(num_slots, probes)])
