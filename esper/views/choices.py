"""Modules that a controller kept, by host family, and its commonest plan.

Axis legend: F = families, C = choices (slot and blueprint).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from esper.growth.slots import sort_slot_ids


class KeptModule(NamedTuple):
    """A kept module: its slot id and its blueprint id."""

    slot: str
    blueprint: str


class Kept(NamedTuple):
    """The modules kept in one host, none if it never grew, and the host's family."""

    family: str
    modules: tuple[KeptModule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTable:
    """Kept modules by host family.

    Attributes:
        families: F names in alphabetical order.
        num_hosts: number of hosts of each family.
        choices: C modules that were kept anywhere, by slot in canonical order, then blueprint; ``None``, the last, for
            hosts that kept nothing, if there are any.
        share: ``float64 [F, C]``. Each host counts 1, in equal parts for its modules, so that every row sums to 1.
    """

    families: tuple[str, ...]
    num_hosts: tuple[int, ...]
    choices: tuple[KeptModule | None, ...]
    share: Tensor


class Plan(NamedTuple):
    """Modules kept together, and the share of hosts that kept exactly these."""

    modules: tuple[KeptModule, ...]
    share: float


def choice_table(hosts: Sequence[Kept]) -> ChoiceTable:
    """Compute the share of each kept module, a slot and a blueprint, among the hosts of each family.

    Raises:
        ValueError: a slot id is malformed.
    """
    families = tuple(sorted({host.family for host in hosts}))
    slots = sort_slot_ids({module.slot for host in hosts for module in host.modules})
    modules = {module for host in hosts for module in host.modules}
    kept = sorted(modules, key=lambda module: (slots.index(module.slot), module.blueprint))
    bare = [None] if any(not host.modules for host in hosts) else []
    choices: tuple[KeptModule | None, ...] = (*kept, *bare)
    column = {choice: index for index, choice in enumerate(choices)}
    sums = torch.zeros(len(families), len(choices), dtype=torch.float64)
    for host in hosts:
        row = families.index(host.family)
        for choice in host.modules or (None,):
            sums[row, column[choice]] += 1.0 / max(1, len(host.modules))
    counts = Counter(host.family for host in hosts)
    num_hosts = tuple(counts[family] for family in families)
    share = sums / torch.tensor(num_hosts, dtype=torch.float64).unsqueeze(1)
    return ChoiceTable(families=families, num_hosts=num_hosts, choices=choices, share=share)


def commonest_plan(hosts: Sequence[Kept]) -> Plan:
    """Return the most frequent set of kept modules; the first in alphabetical order among equals.

    The share of a controller that follows one fixed plan is near 1.

    Raises:
        ValueError: no hosts.
    """
    if not hosts:
        raise ValueError("no hosts, so no plan")
    counts = Counter(tuple(sorted(host.modules)) for host in hosts)
    modules, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return Plan(modules, count / len(hosts))
