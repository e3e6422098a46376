"""Plots of a sweep. Each function returns a figure of column width; lettering stays readable on a phone.

Axis legend: N = iterations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from esper.report.grouping import Configuration, Sweep
from esper.report.numbers import Curve, Quantity, curve, estimate, over_seeds, tail_mean
from esper.views.drawing import Axes, Figure, MaxNLocator, Normalize, PercentFormatter, colormaps
from esper.views.palette import NEVER_COLOUR
from esper.views.plots import INK, style

COLOURS: tuple[str, ...] = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D1F",
)  # fmt: skip
OTHERS = "#AAAAAA"
WIDTH = 4.8
MAX_ROWS = 60
MAX_PANELS = 6
LABEL_LETTERS = 30
ENV_EPOCHS = "charts/env_epochs"


def plain(text: str) -> str:
    """Text that a plot takes as it is, shortened to what fits beside one."""
    short = text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…"
    return short.replace("$", r"\$")


def best(sweep: Sweep, score: Quantity, statistic: str, limit: int) -> list[Configuration]:
    """All configurations, or the ``limit`` of them with the highest score, in their order."""
    if len(sweep.configurations) <= limit:
        return list(sweep.configurations)
    found = {id(item): over_seeds(item, score, statistic) for item in sweep.configurations}

    def rank(item: Configuration) -> float:
        value = found[id(item)]
        return math.inf if value is None else -value.value

    chosen = {id(item) for item in sorted(sweep.configurations, key=rank)[:limit]}
    return [item for item in sweep.configurations if id(item) in chosen]


def time_axis(sweep: Sweep) -> tuple[str, str]:
    """The metric along the x axis and its name: env-epochs where an iteration is not as long for all."""
    lengths = set()
    for configuration in sweep.configurations:
        for run in configuration.runs:
            if run.metrics:
                lengths.add((run.last(ENV_EPOCHS) or 0.0) / run.metrics[-1]["iteration"])
    return (ENV_EPOCHS, "env-epochs") if len(lengths) > 1 else ("iteration", "iteration")


def learning_curves(
    sweep: Sweep, shown: Sequence[Configuration], key: str, title: str, statistic: str, *, never: str | float | None
) -> Figure:
    """A metric against time, a line and a 95 % band over run seeds for each configuration.

    Args:
        sweep: all configurations; those not shown in colour are grey.
        shown: those in colour.
        key: metric.
        title: above the plot.
        statistic: over run seeds.
        never: never-grow's level, or the metric that has it; ``None`` = no such line.
    """
    figure = Figure(figsize=(WIDTH, 3.3 + 0.2 * math.ceil(min(len(shown), 8) / 2)), layout="constrained")
    axes = figure.subplots()
    x, x_label = time_axis(sweep)
    colours = {id(item): colour for item, colour in zip(shown, COLOURS, strict=False)}
    drawn = False
    for item in sorted(sweep.configurations, key=lambda item: id(item) in colours):
        found = curve(item.runs, key, x, statistic)
        colour = colours.get(id(item))
        drawn |= _draw(axes, found, colour, plain(item.label))
    if isinstance(never, str):
        level = curve([run for item in sweep.configurations for run in item.runs], never, x, "mean")
        if np.isfinite(level.value).any():
            axes.plot(level.x, level.value, color=NEVER_COLOUR, ls="--", lw=1.1, label="never-grown twins")
    elif never is not None:
        axes.axhline(never, color=NEVER_COLOUR, ls="--", lw=1.1, label="never grow")
    _finish(axes, title, x_label)
    if key.endswith("accuracy"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if drawn:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, labelcolor=INK)
    else:
        say(axes, "nothing measured yet")
    return figure


def _draw(axes: Axes, found: Curve, colour: str | None, label: str) -> bool:
    if not np.isfinite(found.value).any():
        return False
    if colour is None:
        axes.plot(found.x, found.value, color=OTHERS, lw=0.8, alpha=0.6)
        return True
    marker = "o" if len(found.x) <= 20 else ""
    axes.plot(found.x, found.value, f"{marker}-", color=colour, lw=1.7, ms=2.5, label=label)
    axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.18, linewidth=0)
    return True


def scores(sweep: Sweep, score: Quantity, statistic: str) -> Figure:
    """A row per configuration: a dot for each run seed, statistic and interval."""
    rows = best(sweep, score, statistic, MAX_ROWS)
    figure = Figure(figsize=(WIDTH, 1.1 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, item in enumerate(rows):
        values = [value * score.scale for run in item.runs if (value := score.of(run)) is not None]
        axes.plot(values, [place] * len(values), "o", color=OTHERS, ms=4, alpha=0.8, zorder=2)
        found = estimate(values, statistic)
        if found is not None:
            ends = (
                None
                if found.low is None or found.high is None
                else [[found.value - found.low], [found.high - found.value]]
            )
            axes.errorbar(
                found.value, place, xerr=ends, fmt="D", color=COLOURS[0], ms=5, capsize=3, elinewidth=1.6, zorder=3
            )
    axes.set_yticks(range(len(rows)), [plain(item.label) for item in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if score.name.endswith("return"):
        axes.axvline(0.0, color=NEVER_COLOUR, ls="--", lw=1.1)
    figure.suptitle(f"{score.title}, by configuration", fontsize=10.5, color=INK)
    _finish(axes, "", f"{score.title} ({score.unit})", whole=False)
    axes.tick_params(axis="y", length=0)
    return figure


def heat_map(sweep: Sweep, score: Quantity, statistic: str, rows: str, columns: str) -> Figure:
    """A score over two swept keys; runs that differ in other keys are pooled. The number of runs stands below each.

    Args:
        sweep: all configurations.
        score: what is coloured.
        statistic: over the runs of a cell.
        rows, columns: swept keys.
    """
    numbers = [next(n for n, axis in enumerate(sweep.axes) if axis.key == key) for key in (rows, columns)]
    down, across = (sweep.axes[number] for number in numbers)
    figure = Figure(figsize=(WIDTH, 1.3 + 0.7 * len(down.values)), layout="constrained")
    axes = figure.subplots()
    cells = np.full((len(down.values), len(across.values)), np.nan)
    texts: dict[tuple[int, int], str] = {}
    for row, down_value in enumerate(down.values):
        for column, across_value in enumerate(across.values):
            runs = [
                run
                for item in sweep.configurations
                if (item.values[numbers[0]], item.values[numbers[1]]) == (down_value, across_value)
                for run in item.runs
            ]
            found = estimate([score.of(run) for run in runs], statistic)
            if found is not None:
                half = score.show_half(found)
                cells[row, column] = found.value * score.scale
                texts[row, column] = (
                    score.show(found.value) + (f"\n± {half}" if half else "") + f"\nn = {found.num_seeds}"
                )
            else:
                texts[row, column] = "–" if not runs else f"no result\nof {len(runs)}"
    known = cells[np.isfinite(cells)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    scale = Normalize(low, high if high > low else low + 1.0)
    colours = colormaps["cividis"]
    mesh = axes.pcolormesh(cells, cmap=colours, norm=scale, edgecolors="white", linewidth=2)
    for (row, column), text in texts.items():
        value = cells[row, column]
        dark = math.isfinite(value) and scale(value) > 0.55
        ink = INK if not math.isfinite(value) else ("#111111" if dark else "#FEFEFE")
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8, color=ink, linespacing=1.1)
    axes.set_xticks([place + 0.5 for place in range(len(across.values))], list(map(plain, across.values)))
    axes.set_yticks([place + 0.5 for place in range(len(down.values))], list(map(plain, down.values)))
    axes.invert_yaxis()
    axes.set_ylabel(down.short)
    _finish(axes, f"{score.title} over {down.short} and {across.short}", across.short, whole=False, grid=False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=0)
    return figure


def mix_at_end(shown: Sequence[Configuration], prefix: str, colours: Mapping[str, str], title: str) -> Figure:
    """Shares over the last tenth of the iterations, a stacked bar per configuration."""
    figure = Figure(figsize=(WIDTH, 1.5 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    used = set()
    for place, item in enumerate(shown):
        left = 0.0
        for name, colour in colours.items():
            share = tail_mean(item.runs, prefix + name)
            if share:
                axes.barh(place, share, left=left, height=0.72, color=colour, label="" if name in used else name)
                used.add(name)
                left += share
    axes.set_yticks(range(len(shown)), [plain(item.label) for item in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    figure.suptitle(title, fontsize=10.5, color=INK)
    _finish(axes, "", "share, last tenth of the iterations", whole=False, grid=False)
    axes.tick_params(axis="y", length=0)
    if used:
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    else:
        say(axes, "nothing measured yet")
    return figure


def mix_over_time(
    sweep: Sweep, shown: Sequence[Configuration], prefix: str, colours: Mapping[str, str], title: str
) -> Figure:
    """Shares against time, stacked, a panel per configuration; means over run seeds."""
    shown = shown[:MAX_PANELS]
    figure = Figure(figsize=(WIDTH, 1.0 + 1.25 * len(shown)), layout="constrained")
    x, x_label = time_axis(sweep)
    panels = figure.subplots(len(shown), 1, sharex=x == "iteration", squeeze=False)[:, 0]
    used: dict[str, Any] = {}
    for axes, item in zip(panels, shown, strict=True):
        curves = {name: curve(item.runs, prefix + name, x, "mean") for name in colours}
        at = next(iter(curves.values())).x
        shares = np.array([np.nan_to_num(found.value) for found in curves.values()])
        total = shares.sum(0)
        if not total.any():
            say(axes, "nothing measured yet")
        elif len(at) == 1:
            bottom = 0.0
            for (name, colour), share in zip(colours.items(), shares[:, 0], strict=True):
                used[name] = axes.bar(at, share, bottom=bottom, color=colour)
                bottom += share
        else:
            bands = axes.stackplot(at, *np.where(total > 0, shares, np.nan), colors=list(colours.values()), linewidth=0)
            used |= {name: band for name, band, share in zip(colours, bands, shares, strict=True) if share.any()}
        _finish(axes, plain(item.label) if len(sweep.configurations) > 1 else "", "", grid=False)
        axes.set_ylim(0.0, 1.0)
        axes.margins(x=0.0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[-1].set_xlabel(x_label)
    figure.suptitle(title, fontsize=10.5, color=INK)
    if used:
        figure.legend(
            list(used.values()),
            list(used),
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )
    return figure


def say(axes: Axes, text: str) -> None:
    """Say in the picture that there is nothing to draw."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)


def _finish(axes: Axes, title: str, x_label: str, *, whole: bool = True, grid: bool = True) -> None:
    style(axes, grid=grid)
    axes.set_title(title, fontsize=10.5, color=INK)
    axes.set_xlabel(x_label)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
