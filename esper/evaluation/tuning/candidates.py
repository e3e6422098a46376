"""What tuning tries: plans of germinations, and parameters of rules.

Axis legend: S = slots, B = blueprints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor

from esper.controllers import GrowthPlan, PlannedGermination

P = TypeVar("P")

LATER_EPOCHS = (1, 2, 4, 8)
"""Starts that are tried for the best plans, beside the first epoch."""

Choices = Mapping[str, Sequence[Any]]
"""Values that each field of some parameters may take."""


def extended(plan: GrowthPlan, compatible: Tensor) -> list[GrowthPlan]:
    """The plan, then the plan with one more germination at the first epoch, in each other slot, of all that fits there.

    Args:
        plan: may be empty.
        compatible: ``bool [S, B]``.
    """
    taken = {step.slot for step in plan}
    more = [
        (*plan, PlannedGermination(0, slot, blueprint))
        for slot, blueprint in compatible.nonzero().tolist()
        if slot not in taken
    ]
    return [plan, *more]


def postponed(plans: Sequence[GrowthPlan], num_epochs: int) -> list[GrowthPlan]:
    """The plans, then each of them begun later, as far as the episode of ``num_epochs`` reaches."""
    later = [
        tuple(replace(step, epoch=step.epoch + delay) for step in plan)
        for plan in plans
        for delay in LATER_EPOCHS
        if all(step.epoch + delay < num_epochs for step in plan)
    ]
    return [*plans, *later]


def rule_choices(blueprints: Sequence[str], num_slots: int, max_seeds: int, num_epochs: int) -> dict[str, Choices]:
    """Values that the parameters of each rule-based controller may take, by controller.

    Args:
        blueprints: ids of those that fit any slot.
        num_slots: S.
        max_seeds: modules that may be kept.
        num_epochs: of an episode.
    """
    keep_points = (-1.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    return {
        "heuristic": {
            "patience": (1, 2, 3, 4),
            "improvement": (0.02, 0.05, 0.1, 0.2, 0.4, 0.7),
            "keep_points": keep_points,
        },
        "probe_rule": {
            "blueprint": tuple(blueprints),
            "min_starvation": (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5),
            "rank_weight": (0.0, 0.5, 1.0),
            "gradient_weight": (-0.5, 0.0, 0.0, 0.5),
            "gain_weight": (-0.5, 0.0, 0.0, 0.5),
            "num_modules": tuple(range(1, max_seeds + 1)),
            "check_epoch": tuple(range(1, min(6, num_epochs))) or (1,),
            "max_accuracy": (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6),
            "default_slot": tuple(range(num_slots)),
        },
        "probe_and_keep": {
            "blueprint": tuple(blueprints),
            "look_age": (1, 2, 3),
            "min_preview": (-1000.0, 0.0, 0.5, 1.0, 2.0, 4.0),
            "keep_points": keep_points,
        },
    }


def drawn(kind: Callable[..., P], choices: Choices, count: int, generator: torch.Generator) -> list[P]:
    """Different parameters with every field drawn from its choices; all that there are, if they are no more.

    Args:
        kind: makes parameters from fields.
        choices: of every field.
        count: how many.
        generator: source of randomness.
    """
    if math.prod(len(values) for values in choices.values()) <= count:
        return list(dict.fromkeys(kind(**dict(zip(choices, row, strict=True))) for row in product(*choices.values())))
    found: dict[P, None] = {}
    # Fields with a value twice have fewer combinations than the product says, so draws are bounded.
    for _ in range(20 * count):
        if len(found) == count:
            break
        found.setdefault(kind(**{name: _one(values, generator) for name, values in choices.items()}))
    return list(found)


def neighbours(best: P, choices: Choices, count: int, generator: torch.Generator) -> list[P]:
    """Parameters, then others that differ from them in one or two fields, drawn from their choices."""
    found: dict[P, None] = {best: None}
    names = [name for name, values in choices.items() if len(set(values)) > 1]
    for _ in range(20 * count):
        if len(found) > count or not names:
            break
        changed = [_one(names, generator), _one(names, generator)]
        found.setdefault(replace(best, **{name: _one(choices[name], generator) for name in changed}))  # type: ignore[type-var]
    return list(found)


def _one(values: Sequence[Any], generator: torch.Generator) -> Any:
    return values[int(torch.randint(len(values), (), generator=generator))]
