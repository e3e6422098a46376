"""Table of observation features (v3): names, order and ranges, used by code, tests and docs.

Layout: the base features; then those of slot 0, slot 1, …; then, if there are any, the probes of slot 0, slot 1, …;
then, if it is observed, the price of size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esper.growth.actions import OP_NAMES
from esper.growth.stages import STAGE_NAMES

if TYPE_CHECKING:
    from torch import Tensor

HISTORY = 5
"""Epochs of validation that an observation looks back on."""

BOUND = 2.0
"""Bound of all features: they stay within [-2, 2]."""

PRICE_SCALE = 4
"""Doublings of the price that are 1 in the observation."""

MAX_PRICE = 2.0 ** (BOUND * PRICE_SCALE)
"""Highest price that an observation tells from higher ones, in points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of the observation.

    Attributes:
        name: slot features are prefixed by ``slot0.``, ``slot1.``, ….
        index: column.
        low, high: range, inclusive.
        continuous: true if a running normaliser applies; flags, one-hots and enum values stay as they are.
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
"""Stages whose column is always 0 and is kept because the layout follows the enum.

UNKNOWN results from decoding a corrupt record. All features of an empty (DORMANT) slot are 0, this one included. A
GERMINATED module is in TRAINING at the next observation: gate G1 comes at the end of its first epoch, and only
parameters that are not finite fail it.
"""

_PRICE: tuple[_Row, ...] = (_value("price", -BOUND, BOUND),)

NUM_BASE_FEATURES = len(_BASE)
NUM_SLOT_FEATURES = len(_SLOT)
BASE_INDEX: dict[str, int] = {row[0]: index for index, row in enumerate(_BASE)}
SLOT_INDEX: dict[str, int] = {row[0]: index for index, row in enumerate(_SLOT)}
BASE_LOW, BASE_HIGH = (np.array([row[bound] for row in _BASE], dtype=np.float32) for bound in (1, 2))
SLOT_LOW, SLOT_HIGH = (np.array([row[bound] for row in _SLOT], dtype=np.float32) for bound in (1, 2))


def num_features(num_slots: int, num_probes: int = 0, price: bool = False) -> int:
    """Return the width of an observation, D."""
    return NUM_BASE_FEATURES + (NUM_SLOT_FEATURES + num_probes) * num_slots + price * len(_PRICE)


def feature_table(num_slots: int, probes: Sequence[str] = (), price: bool = False) -> tuple[Feature, ...]:
    """List every column in order.

    Args:
        num_slots: S.
        probes: names of the slot probes.
        price: true if the price of size is observed.

    Raises:
        ValueError: an unknown probe.
    """
    # Imported here: the configuration needs widths without the slow imports.
    from esper.population.probes import chosen_probes

    rows = list(_BASE)
    for block in (_SLOT, [_value(name, -BOUND, BOUND) for name in chosen_probes(probes)]):
        rows += [(f"slot{slot}.{row[0]}", *row[1:]) for slot in range(num_slots) for row in block]
    if price:
        rows += _PRICE
    return tuple(
        Feature(name=name, index=index, low=low, high=high, continuous=continuous)
        for index, (name, low, high, continuous) in enumerate(rows)
    )


def feature_kinds(num_slots: int, probes: Sequence[str] = (), price: bool = False) -> Tensor:
    """Number the features so that those of different slots with one meaning have one number, ``int64 [D]``."""
    import torch

    numbers: dict[str, int] = {}
    names = (feature.name.rpartition(".")[2] for feature in feature_table(num_slots, probes, price))
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def continuous_features(num_slots: int, probes: Sequence[str] = (), price: bool = False) -> Tensor:
    """Return the columns that a running normaliser applies to, ``bool [D]``."""
    import torch  # not above: the configuration needs widths without it

    return torch.tensor([feature.continuous for feature in feature_table(num_slots, probes, price)])
