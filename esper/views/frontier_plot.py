"""What a score costs: on test, against added parameters, one marker per controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from esper.telemetry.statistics import Interval
from esper.views.drawing import (
    Annotation,
    Axes,
    Bbox,
    Figure,
    FigureCanvasAgg,
    MaxNLocator,
    PercentFormatter,
    StrMethodFormatter,
)
from esper.views.palette import CONTROLLER_COLOUR, NEVER_COLOUR
from esper.views.plots import INK, save, style

LEARNED, NEVER = "learned", "never"
MARKERS = "sD^v<>Xph*"
RIVAL_COLOURS = ("#D55E00", "#009E73", "#B0568A", "#B87A00", "#7A5195", "#333333", "#8C6D1F")
LINE_STEP = 6.0
"""Pixels."""
LABEL_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
LABEL_DISTANCES = (7.0, 14.0, 24.0, 36.0)
"""Where a label may stand beside its marker: directions in order of liking, at distances in points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the score is.

    Attributes:
        name: in the title.
        label: of its axis.
        better: 1 if more of it is better, -1 if less.
        spec: format of a level.
    """

    name: str
    label: str
    better: int
    spec: str


ACCURACY = Measure(name="accuracy", label="test accuracy", better=1, spec=".1%")
BITS = Measure(name="predicting text", label="test bits per byte", better=-1, spec=".3f")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One controller over the held-out hosts.

    Attributes:
        name: the controller.
        added_parameters: of the modules kept, mean over hosts.
        test: score of the final networks; accuracy as a fraction of 1.
    """

    name: str
    added_parameters: Interval
    test: Interval


def pareto(points: Sequence[FrontierPoint], measure: Measure = ACCURACY) -> list[FrontierPoint]:
    """Points that no other one beats, from the fewest parameters to the most.

    One point beats another if it has no more parameters and no worse a score, and is better in one of the two. Judged
    by the estimates.
    """

    def beats(a: FrontierPoint, b: FrontierPoint) -> bool:
        cost = a.added_parameters.estimate, b.added_parameters.estimate
        gain = measure.better * a.test.estimate, measure.better * b.test.estimate
        return cost[0] <= cost[1] and gain[0] >= gain[1] and (cost[0] < cost[1] or gain[0] > gain[1])

    best = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(best, key=lambda point: point.added_parameters.estimate)


def frontier(points: Sequence[FrontierPoint], path: Path, measure: Measure = ACCURACY) -> None:
    """Markers with 95 % bars both ways, a line through those that no other beats, and never-grow as a dashed level.

    Better is always up.

    Args:
        points: one per controller; none is said in the picture.
        path: PNG to write.
        measure: what their score is.
    """
    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    figure.suptitle(f"What {measure.name} costs: held-out hosts, mean with 95 % interval", fontsize=12, color=INK)
    style(axes)
    axes.set_xlabel("added parameters")
    axes.set_ylabel(measure.label)
    if measure is ACCURACY:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if not points:
        axes.text(0.5, 0.5, "no controller measured", transform=axes.transAxes, ha="center", va="center", color=INK)
        save(figure, path)
        return
    best = pareto(points, measure)
    axes.plot(
        [point.added_parameters.estimate for point in best],
        [point.test.estimate for point in best],
        color="#9DB8CC",
        linewidth=2.2,
        zorder=1.5,
        label="Pareto frontier",
    )
    looks = _looks([point.name for point in points])
    for point in points:
        if point.name == NEVER:
            level = point.test.estimate
            label = f"never grow ({level:{measure.spec}})"
            axes.axhline(level, color=NEVER_COLOUR, linestyle="--", linewidth=1.4, zorder=1.4, label=label)
        _draw(axes, point, *looks[point.name])
    axes.margins(x=0.1, y=0.12)
    if measure.better < 0:
        axes.invert_yaxis()
    if all(point.added_parameters.low >= 0.0 for point in points):
        left, right = axes.get_xlim()
        axes.set_xlim(left=max(left, -0.05 * right))
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize=9, borderaxespad=0.2)
    _label(figure, axes, points, best, {name: colour for name, (colour, _) in looks.items()})
    save(figure, path)


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each controller: the learned one and never-grow are always the same, others by order."""
    looks = {LEARNED: (CONTROLLER_COLOUR, "o"), NEVER: (NEVER_COLOUR, "o")}
    rivals = [name for name in names if name not in looks]
    for index, name in enumerate(rivals):
        looks[name] = RIVAL_COLOURS[index % len(RIVAL_COLOURS)], MARKERS[index % len(MARKERS)]
    return looks


def _draw(axes: Axes, point: FrontierPoint, colour: str, marker: str) -> None:
    cost, gain = point.added_parameters, point.test
    axes.errorbar(
        cost.estimate,
        gain.estimate,
        xerr=[[max(cost.estimate - cost.low, 0.0)], [max(cost.high - cost.estimate, 0.0)]],
        yerr=[[max(gain.estimate - gain.low, 0.0)], [max(gain.high - gain.estimate, 0.0)]],
        color=colour,
        marker=marker,
        markersize=9.0 if point.name == LEARNED else 7.0,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=1.4,
        capsize=2.5,
        linestyle="none",
        zorder=4 if point.name == LEARNED else 3,
    )


def _label(
    figure: Figure,
    axes: Axes,
    points: Sequence[FrontierPoint],
    best: Sequence[FrontierPoint],
    colours: dict[str, str],
) -> None:
    """Names beside their markers, each at the first place that is free; a thin line leads to one that is far off."""
    figure.draw_without_rendering()
    inside = axes.get_window_extent()
    legend = axes.get_legend()
    taken = [legend.get_window_extent()] if legend is not None else []
    taken += _line_boxes(axes, best)
    for point in points:
        taken += _boxes(axes, point)
    # The learned controller chooses first.
    for point in sorted(points, key=lambda point: point.name != LEARNED):
        label, distance = _place(axes, point, inside, taken)
        label.set_color(colours[point.name])
        if distance > LABEL_DISTANCES[0]:
            _lead(axes, label, colours[point.name])
        label.set_fontweight("bold" if point.name == LEARNED else "normal")
        taken.append(label.get_window_extent())


def _boxes(axes: Axes, point: FrontierPoint) -> list[Bbox]:
    """What a point covers, in pixels: its marker and its two bars."""
    cost, gain = point.added_parameters, point.test
    corners = [(cost.estimate, gain.low), (cost.estimate, gain.high), (cost.low, gain.estimate)]
    bottom, top, left, right, centre = axes.transData.transform(
        [*corners, (cost.high, gain.estimate), (cost.estimate, gain.estimate)]
    )
    half = 0.06 * axes.figure.dpi
    return [
        Bbox.from_extents(centre[0] - half, centre[1] - half, centre[0] + half, centre[1] + half),
        Bbox.from_extents(bottom[0] - 2, bottom[1], top[0] + 2, top[1]),
        Bbox.from_extents(left[0], left[1] - 2, right[0], right[1] + 2),
    ]


def _line_boxes(axes: Axes, best: Sequence[FrontierPoint]) -> list[Bbox]:
    """What the frontier covers, in pixels: squares along it."""
    line = [(point.added_parameters.estimate, point.test.estimate) for point in best]
    corners = axes.transData.transform(line)
    boxes = []
    for start, end in pairwise(corners):
        for share in np.linspace(0.0, 1.0, max(2, round(float(np.hypot(*(end - start))) / LINE_STEP))):
            x, y = start + share * (end - start)
            boxes.append(Bbox.from_extents(x - LINE_STEP / 2, y - LINE_STEP / 2, x + LINE_STEP / 2, y + LINE_STEP / 2))
    return boxes


def _place(axes: Axes, point: FrontierPoint, inside: Bbox, taken: Sequence[Bbox]) -> tuple[Annotation, float]:
    """The label at the place that overlaps least, the nearest among equals, and its distance in points."""
    label = axes.annotate(
        point.name,
        (point.added_parameters.estimate, point.test.estimate),
        xytext=(0.0, 0.0),
        textcoords="offset points",
        fontsize=9,
        zorder=5,
    )
    places = [(right, up, distance) for distance in LABEL_DISTANCES for right, up in LABEL_DIRECTIONS]

    def covered(place: tuple[int, int, float]) -> float:
        _move(label, *place)
        box = label.get_window_extent()
        outside = box.width * box.height - _overlap(box, inside)
        return outside + sum(_overlap(box, other) for other in taken)

    place = min(places, key=covered)
    _move(label, *place)
    return label, place[2]


def _lead(axes: Axes, label: Annotation, colour: str) -> None:
    """A line from a label's near end to its marker."""
    axes.annotate(
        "",
        label.xy,
        xytext=label.get_position(),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0.0, "shrinkB": 4.0},
        zorder=2,
    )


def _move(label: Annotation, right: int, up: int, distance: float) -> None:
    label.set_position((right * distance, up * distance))
    label.set_horizontalalignment({1: "left", -1: "right"}.get(right, "center"))  # type: ignore[arg-type]
    label.set_verticalalignment({1: "bottom", -1: "top"}.get(up, "center"))  # type: ignore[arg-type]


def _overlap(a: Bbox, b: Bbox) -> float:
    width = float(min(a.x1, b.x1) - max(a.x0, b.x0))
    height = float(min(a.y1, b.y1) - max(a.y0, b.y0))
    return max(width, 0.0) * max(height, 0.0)
