"""Shapley values: contributions of modules that share credit, from sampled orders of switching them on.

The value of a module is the mean, over orders, of its marginal contribution to the modules before it (Shapley 1953;
sampled orders: Castro, Gómez and Tejada 2009). In each order the contributions sum to f(all) - f(none), so the values
do.

Axis legend: E = environments, S = slots, K = configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import torch
from torch import Tensor

Order = tuple[int, ...]
"""Slots in the order in which their modules are switched on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapleyPlan:
    """Configurations to evaluate.

    Attributes:
        orders: orders of each environment; none where nothing is measured.
        configurations: bit masks ``int64 [E, K]``, bit s for the module of slot s, padded with -1. All modules on, the
            present state, is omitted.
    """

    orders: tuple[tuple[Order, ...], ...]
    configurations: Tensor


def plan_shapley(
    active: Tensor,
    wanted: Tensor,
    *,
    num_permutations: int,
    max_configurations: int,
    stream: Callable[[int], torch.Generator],
) -> ShapleyPlan:
    """Choose orders for the modules of some environments, and list the configurations that they need.

    Args:
        active: ``bool [E, S]`` modules that take part.
        wanted: ``bool [E]`` environments to measure.
        num_permutations: orders per environment.
        max_configurations: largest number of configurations per environment, without the present state.
        stream: returns the random stream of an environment.
    """
    orders = tuple(
        choose_orders(slots.nonzero().flatten().tolist(), num_permutations, max_configurations, stream(environment))
        if wanted[environment]
        else ()
        for environment, slots in enumerate(active)
    )
    needed = [sorted(needed_configurations(chosen)) for chosen in orders]
    configurations = torch.full((len(orders), max(map(len, needed), default=0)), -1)
    for environment, masks in enumerate(needed):
        configurations[environment, : len(masks)] = torch.tensor(masks, dtype=torch.int64)
    return ShapleyPlan(orders=orders, configurations=configurations)


def choose_orders(
    slots: Sequence[int], count: int, max_configurations: int, generator: torch.Generator
) -> tuple[Order, ...]:
    """Return all orders if there are at most ``count`` and their configurations fit, otherwise sampled ones.

    Sampling ends before the first order that would need more configurations; skipping single orders for their size
    would bias the sample.
    """
    if not slots:
        return ()
    if factorial(len(slots)) <= count and 2 ** len(slots) - 1 <= max_configurations:
        return tuple(permutations(slots))
    orders: list[Order] = []
    needed: set[int] = set()
    for _ in range(count):
        order = tuple(slots[place] for place in torch.randperm(len(slots), generator=generator).tolist())
        needed |= needed_configurations([order])
        if len(needed) > max_configurations:
            break
        orders.append(order)
    return tuple(orders)


def needed_configurations(orders: Iterable[Order]) -> set[int]:
    """Return the bit masks of all sets that precede some module in some order."""
    return {mask for order in orders for mask in _before(order)}


def _before(order: Order) -> list[int]:
    """Return the bit masks of the modules that precede each one."""
    masks = [0]
    for slot in order[:-1]:
        masks.append(masks[-1] | 1 << slot)
    return masks


def shapley_values(plan: ShapleyPlan, present: Tensor, points: Tensor, num_slots: int) -> Tensor:
    """Return the values ``float64 [E, S]``, NaN for a module that was not measured.

    Args:
        plan: the evaluated plan.
        present: ``[E]`` points with all modules on.
        points: ``[E, K]`` points of the plan's configurations.
        num_slots: S.
    """
    values = torch.full((len(plan.orders), num_slots), torch.nan, dtype=torch.float64)
    for environment, orders in enumerate(plan.orders):
        if not orders:
            continue
        found = dict(zip(plan.configurations[environment].tolist(), points[environment].tolist(), strict=True))
        sums = dict.fromkeys(orders[0], 0.0)
        for order in orders:
            worth = [found[mask] for mask in _before(order)] + [float(present[environment])]
            for slot, without, with_it in zip(order, worth[:-1], worth[1:], strict=True):
                sums[slot] += with_it - without
        for slot, total in sums.items():
            values[environment, slot] = total / len(orders)
    return values
