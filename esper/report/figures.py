"""Plots of a sweep. Each function returns a figure of column width whose text is readable on a phone.

Axis legend: N = iterations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from esper.report.grouping import Configuration, Sweep, names
from esper.report.numbers import Curve, Quantity, curve, estimate, over_seeds, tail_mean
from esper.telemetry.statistics import accuracy_ends
from esper.views.drawing import Artist, Axes, Figure, MaxNLocator, Normalize, PercentFormatter, colormaps
from esper.views.palette import CONFIGURATION_COLOURS, INK, NEVER_COLOUR
from esper.views.plots import say_empty, style

OTHERS = "#AAAAAA"
WIDTH = 4.8
MAX_ROWS = 60
MAX_PANELS = 6
LABEL_LETTERS = 30
ENV_EPOCHS = "charts/env_epochs"
NEVER_LABELS = ("never grow", "never-grown twins")


def plain(text: str) -> str:
    """Escape text for a plot and shorten it to the space available."""
    short = text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…"
    return short.replace("$", r"\$")


def best(sweep: Sweep, score: Quantity, statistic: str, limit: int) -> list[Configuration]:
    """Return all configurations, or the ``limit`` of them with the highest score, in their order."""
    if len(sweep.configurations) <= limit:
        return list(sweep.configurations)
    found = {id(item): over_seeds(item, score, statistic) for item in sweep.configurations}

    def rank(item: Configuration) -> float:
        value = found[id(item)]
        return math.inf if value is None else -value.value

    chosen = {id(item) for item in sorted(sweep.configurations, key=rank)[:limit]}
    return [item for item in sweep.configurations if id(item) in chosen]


def time_axis(sweep: Sweep) -> tuple[str, str]:
    """Return the metric of the x axis and its name: env-epochs if iterations differ in length."""
    lengths = set()
    for configuration in sweep.configurations:
        for run in configuration.runs:
            if run.metrics:
                lengths.add((run.last(ENV_EPOCHS) or 0.0) / run.metrics[-1]["iteration"])
    return (ENV_EPOCHS, "env-epochs") if len(lengths) > 1 else ("iteration", "iteration")


class Facet(NamedTuple):
    """A panel: its title, and its configurations with their labels in the legend."""

    title: str
    lines: list[tuple[Configuration, str]]


def facets(sweep: Sweep) -> list[Facet]:
    """Divide configurations by the swept key of fewest values, so that the others are in the legend; a single facet
    if fewer than two keys were swept, or that one has more than :data:`MAX_PANELS` values.
    """
    least = min(range(len(sweep.axes)), key=lambda place: len(sweep.axes[place].values), default=0)
    if len(sweep.axes) < 2 or len(sweep.axes[least].values) > MAX_PANELS:
        alone = len(sweep.configurations) == 1
        return [Facet("", [(item, "learned controller" if alone else item.label) for item in sweep.configurations])]
    known = names(sweep.axes)

    def rest(item: Configuration) -> str:
        pairs = zip(known, item.values, strict=True)
        return ", ".join(f"{name}={value}" for place, (name, value) in enumerate(pairs) if place != least)

    return [
        Facet(
            f"{known[least]}={value}",
            [(item, rest(item)) for item in sweep.configurations if item.values[least] == value],
        )
        for value in sweep.axes[least].values
    ]


def coloured(sweep: Sweep, score: Quantity, statistic: str) -> list[Configuration]:
    """Return the configurations whose curves have colours: all, if these suffice for the labels of :func:`facets`,
    otherwise those of highest score.
    """
    labels = {label for part in facets(sweep) for _, label in part.lines}
    limit = len(CONFIGURATION_COLOURS)
    return list(sweep.configurations) if len(labels) <= limit else best(sweep, score, statistic, limit)


def learning_curves(
    sweep: Sweep,
    shown: Sequence[Configuration],
    key: str,
    title: str,
    unit: str,
    statistic: str,
    *,
    never: str | float | None,
) -> Figure:
    """Plot a metric against time, with a line and a 95 % band over run seeds for each configuration, in the panels of
    :func:`facets`.

    Args:
        sweep: all configurations; those not in ``shown`` are grey.
        shown: configurations in colour.
        key: metric.
        title: title above the plot.
        unit: name of the y axis, with its unit.
        statistic: statistic over run seeds.
        never: never-grow's level, or the metric that has it; ``None`` = no such line.
    """
    parts = facets(sweep)
    chosen = {id(item) for item in shown}
    labels = dict.fromkeys(label for part in parts for item, label in part.lines if id(item) in chosen)
    colours = dict(zip(labels, CONFIGURATION_COLOURS, strict=False))
    height = (2.8 if len(parts) == 1 else 0.5 + 1.6 * len(parts)) + 0.2 * math.ceil((len(labels) + 1) / 2)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(len(parts), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    x, x_label = time_axis(sweep)
    keys: dict[str, Artist] = {}
    for axes, part in zip(panels, parts, strict=True):
        drawn = False
        for item, label in sorted(part.lines, key=lambda line: id(line[0]) in chosen):
            found = curve(item.runs, key, x, statistic)
            if key.endswith("accuracy"):
                low, high = accuracy_ends(found.low, found.high)
                found = replace(found, low=low, high=high)
            drawn |= _draw(axes, found, colours[label] if id(item) in chosen else None, plain(label))
        runs = [run for item, _ in part.lines for run in item.runs]
        _draw_never(axes, never if never is None or isinstance(never, float) else curve(runs, never, x, "mean"))
        _finish(axes, part.title if len(parts) > 1 else title, "")
        axes.set_ylabel(unit)
        if key.endswith("accuracy"):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if drawn:
            handles, texts = axes.get_legend_handles_labels()
            keys |= {text: handle for text, handle in zip(texts, handles, strict=True) if text not in keys}
        else:
            say_empty(axes, "nothing measured yet")
    panels[-1].set_xlabel(x_label)
    if len(parts) > 1:
        figure.suptitle(title, fontsize=10.5, color=INK)
    _legend(figure, {text: keys[text] for text in (*map(plain, labels), *NEVER_LABELS) if text in keys}, 2, 8.5)
    return figure


def _draw_never(axes: Axes, level: Curve | float | None) -> None:
    """Draw the level of never growing, as a line or a curve."""
    if isinstance(level, float):
        axes.axhline(level, color=NEVER_COLOUR, ls="--", lw=1.1, label=NEVER_LABELS[0])
    elif level is not None and np.isfinite(level.value).any():
        axes.plot(level.x, level.value, color=NEVER_COLOUR, ls="--", lw=1.1, label=NEVER_LABELS[1])


def _legend(figure: Figure, keys: Mapping[str, Artist], columns: int, size: float) -> None:
    """Put a legend below the panels, if there is anything to explain."""
    if keys:
        figure.legend(
            list(keys.values()),
            list(keys),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=size,
            labelcolor=INK,
        )


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
    """Plot a row per configuration: a dot for each run seed, statistic and interval."""
    rows = best(sweep, score, statistic, MAX_ROWS)
    figure = Figure(figsize=(WIDTH, 1.1 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, item in enumerate(rows):
        values = [value for run in item.runs if (value := score.of(run)) is not None]
        scaled = [value * score.scale for value in values]
        axes.plot(scaled, [place] * len(values), "o", color=OTHERS, ms=4, alpha=0.8, zorder=2)
        found = estimate(values, statistic)
        if found is not None:
            ends = score.ends(found)
            bars = None if ends is None else [[score.scale * abs(found.value - end)] for end in ends]
            at, colour = found.value * score.scale, CONFIGURATION_COLOURS[0]
            axes.errorbar(at, place, xerr=bars, fmt="D", color=colour, ms=5, capsize=3, elinewidth=1.6, zorder=3)
    axes.set_yticks(range(len(rows)), [plain(item.label) for item in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if score.name.endswith("return"):
        axes.axvline(0.0, color=NEVER_COLOUR, ls="--", lw=1.1)
    figure.suptitle(f"{score.title}, by configuration", fontsize=10.5, color=INK)
    _finish(axes, "", f"{score.title} ({score.unit})", whole=False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="y", length=0)
    return figure


def heat_map(sweep: Sweep, score: Quantity, statistic: str, rows: str, columns: str) -> Figure:
    """Plot a score over two swept keys; runs that differ in other keys are pooled. The number of runs is below each
    score.

    Args:
        sweep: all configurations.
        score: the score, shown by colour.
        statistic: statistic over the runs of a cell.
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
    bar.set_label(f"{score.title} ({score.unit})", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=0)
    return figure


def mix_at_end(shown: Sequence[Configuration], prefix: str, colours: Mapping[str, str], title: str) -> Figure:
    """Plot the means of metrics that are shares of 1, over the last tenth of the iterations: a stacked bar per
    configuration. The metrics are named ``prefix`` and a key of ``colours``.
    """
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
        say_empty(axes, "nothing measured yet")
    return figure


def mix_over_time(
    sweep: Sweep, shown: Sequence[Configuration], prefix: str, colours: Mapping[str, str], title: str
) -> Figure:
    """Plot metrics that are shares of 1 against time, means over run seeds: a stacked panel per configuration.
    Arguments are those of :func:`mix_at_end`.
    """
    shown = shown[:MAX_PANELS]
    columns = 1 if len(shown) <= 2 else 2
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(WIDTH, max(1.0 + 1.25 * rows, 3.0)), layout="constrained")
    x, x_label = time_axis(sweep)
    grid = figure.subplots(rows, columns, sharex=x == "iteration", sharey=True, squeeze=False)
    panels = grid.ravel()[: len(shown)]
    for axes in grid.ravel()[len(shown) :]:
        axes.set_visible(False)
    used: dict[str, Any] = {}
    for axes, item in zip(panels, shown, strict=True):
        curves = {name: curve(item.runs, prefix + name, x, "mean") for name in colours}
        at = next(iter(curves.values())).x
        shares = np.array([np.nan_to_num(found.value) for found in curves.values()])
        total = shares.sum(0)
        if not total.any():
            say_empty(axes, "nothing measured yet")
        elif len(at) == 1:
            bottom = 0.0
            for (name, colour), share in zip(colours.items(), shares[:, 0], strict=True):
                used[name] = axes.bar(at, share, bottom=bottom, color=colour)
                bottom += share
        else:
            bands = axes.stackplot(at, *np.where(total > 0, shares, np.nan), colors=list(colours.values()), linewidth=0)
            used |= {name: band for name, band, share in zip(colours, bands, shares, strict=True) if share.any()}
        _finish(axes, "", "", grid=False)
        if len(sweep.configurations) > 1:
            axes.set_title(plain(item.label), fontsize=8 if columns > 1 else 10, color=INK)
        axes.set_ylim(0.0, 1.0)
        axes.margins(x=0.0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in panels[-columns:]:  # the lowest of each column
        axes.set_xlabel(x_label)
        axes.tick_params(labelbottom=True)
    figure.suptitle(title, fontsize=10.5, color=INK)
    _legend(figure, used, 3, 8)
    return figure


def _finish(axes: Axes, title: str, x_label: str, *, whole: bool = True, grid: bool = True) -> None:
    style(axes, grid=grid)
    axes.set_title(title, fontsize=10.5, color=INK)
    axes.set_xlabel(x_label)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
