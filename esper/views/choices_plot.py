"""Map of the modules that a controller kept by host family, which shows whether it follows one fixed plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from esper.views.choices import ChoiceTable, Kept, choice_table, commonest_plan
from esper.views.drawing import Axes, Figure, PercentFormatter
from esper.views.palette import INK
from esper.views.plots import save, say_empty, style

NOTHING = "nothing"
CELL_WIDTH, CELL_HEIGHT = 0.62, 0.42
"""Size of a cell in inches."""
DARK = 0.55
"""Share above which numbers are written in white."""


def choice_map(hosts: Sequence[Kept], path: Path, controller: str) -> None:
    """Draw a heat map of :func:`~esper.views.choices.choice_table`, in which a fixed plan is one dark column.

    Args:
        hosts: kept modules of each host; for an empty list the picture says that there are none.
        path: PNG to write.
        controller: name for the title.
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
        say_empty(axes, "no hosts recorded")
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
    """Label families to the left, blueprints above, and slots below."""
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
    # Thin white lines separate cells, thick ones slots.
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
