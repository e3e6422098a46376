"""Candidates of tuning: plans of germinations, and parameters of rules.

Axis legend: S = slots, B = blueprints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor

from esper.controllers import Choices, GrowthPlan, PlannedGermination

P = TypeVar("P")


def extended(plan: GrowthPlan, compatible: Tensor) -> list[GrowthPlan]:
    """Return the plan itself, and every plan that adds to it one germination at the first epoch: a fitting blueprint in
    a slot that the plan does not use.

    Args:
        plan: plan to extend; may be empty.
        compatible: ``bool [S, B]``, blueprints that fit each slot.
    """
    taken = {step.slot for step in plan}
    more = [
        (*plan, PlannedGermination(0, slot, blueprint))
        for slot, blueprint in compatible.nonzero().tolist()
        if slot not in taken
    ]
    return [plan, *more]


def postponed(plans: Sequence[GrowthPlan], num_epochs: int) -> list[GrowthPlan]:
    """Return the plans, and each of them 1, 2, 4, 8, … epochs later, within an episode of ``num_epochs``."""
    delays = [2**power for power in range((num_epochs - 1).bit_length())]
    later = [
        tuple(replace(step, epoch=step.epoch + delay) for step in plan)
        for plan in plans
        for delay in delays
        if all(step.epoch + delay < num_epochs for step in plan)
    ]
    return [*plans, *later]


def drawn(kind: Callable[..., P], choices: Choices, count: int, generator: torch.Generator) -> list[P]:
    """Draw ``count`` different sets of parameters, every field from its choices; all combinations if there are not
    more.

    Args:
        kind: makes parameters from fields.
        choices: possible values of every field.
        count: number of parameter sets to draw.
        generator: source of randomness.
    """
    if math.prod(len(values) for values in choices.values()) <= count:
        return list(dict.fromkeys(kind(**dict(zip(choices, row, strict=True))) for row in product(*choices.values())))
    found: dict[P, None] = {}
    # Fields with repeated values have fewer combinations than the product, so draws are bounded.
    for _ in range(20 * count):
        if len(found) == count:
            break
        found.setdefault(kind(**{name: _one(values, generator) for name, values in choices.items()}))
    return list(found)


def neighbours(best: P, choices: Choices, count: int, generator: torch.Generator) -> list[P]:
    """Return parameters, and others that differ from them in one or two fields, drawn from their choices."""
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
