"""What a controller kept on hosts of each family: whether it chooses per host or follows one plan.

Axis legend: F = families, C = choices (slot and blueprint).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from esper.growth.slots import sort_slot_ids
from esper.views.drawing import Axes, Figure, PercentFormatter
from esper.views.plots import INK, save, style

NOTHING = "nothing"
CELL_WIDTH, CELL_HEIGHT = 0.62, 0.42
"""Inches."""
DARK = 0.55
"""Share above which numbers are written in white."""


class KeptModule(NamedTuple):
    """One module kept: its slot id and its blueprint id."""

    slot: str
    blueprint: str


class Kept(NamedTuple):
    """What was kept in one host: its family and its modules, none if it never grew."""

    family: str
    modules: tuple[KeptModule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTable:
    """What was kept, by host family.

    Attributes:
        families: F names in alphabetical order.
        num_hosts: of each family.
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
    """Share of what was kept, by family. The order of hosts, and of modules in a host, does not matter.

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
    """The set of modules that most hosts ended with; the first in alphabetical order among equals.

    A controller that follows one plan whatever the host has a share near 1.

    Raises:
        ValueError: no hosts.
    """
    if not hosts:
        raise ValueError("no hosts, so no plan")
    counts = Counter(tuple(sorted(host.modules)) for host in hosts)
    modules, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return Plan(modules, count / len(hosts))


def choice_map(hosts: Sequence[Kept], path: Path, controller: str) -> None:
    """Heat map of :func:`choice_table`: a fixed plan is one dark column, choosing per host is not.

    Args:
        hosts: what was kept in each; none is said in the picture.
        path: PNG to write.
        controller: whose choices, for the title.
    """
    table = choice_table(hosts)
    num_rows, num_columns = max(len(table.families), 1), max(len(table.choices), 1)
    size = max(7.0, 3.2 + CELL_WIDTH * num_columns), 2.6 + CELL_HEIGHT * num_rows
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    title = f"What the {controller} controller kept, by host family"
    if not hosts:
        figure.suptitle(title, fontsize=12, color=INK)
        style(axes, grid=False)
        axes.text(0.5, 0.5, "no hosts recorded", transform=axes.transAxes, ha="center", va="center", color=INK)
        save(figure, path)
        return
    plan = commonest_plan(hosts)
    names = " + ".join(f"{module.blueprint} in {module.slot}" for module in plan.modules) or NOTHING
    figure.suptitle(f"{title}\ncommonest: {names}, {plan.share:.0%} of hosts", fontsize=11, color=INK)
    image = axes.imshow(table.share.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    _write_shares(axes, table)
    _name_axes(axes, table)
    bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1.0), pad=0.02)
    bar.set_label("share of what was kept", color=INK)
    bar.ax.tick_params(colors=INK, labelsize=9)
    bar.outline.set_visible(False)
    save(figure, path)


def _write_shares(axes: Axes, table: ChoiceTable) -> None:
    for row, shares in enumerate(table.share.tolist()):
        for column, share in enumerate(shares):
            if share > 0.0:
                colour = "white" if share > DARK else INK
                axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=9, color=colour)


def _name_axes(axes: Axes, table: ChoiceTable) -> None:
    """Families to the left, blueprints above, and the slots that hold them beneath."""
    style(axes, grid=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    rows = [f"{name} ({count})" for name, count in zip(table.families, table.num_hosts, strict=True)]
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylabel("host family (hosts)")
    columns = [NOTHING if choice is None else choice.blueprint for choice in table.choices]
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    # Thin white lines part cells, thick ones slots.
    for edge in range(1, len(rows)):
        axes.axhline(edge - 0.5, color="white", linewidth=1.0)
    start = 0
    for slot, group in groupby(table.choices, key=lambda choice: None if choice is None else choice.slot):
        stop = start + len(list(group))
        for edge in range(start + 1, stop):
            axes.axvline(edge - 0.5, color="white", linewidth=1.0)
        if start > 0:
            axes.axvline(start - 0.5, color="#AAAAAA", linewidth=1.4)
        if slot is not None:
            middle = (start + stop - 1) / 2
            axes.annotate(
                slot,
                (middle, 0.0),
                xytext=(0.0, -6.0),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=9.5,
                color=INK,
            )
        start = stop
