"""Plots of a score against a cost, one marker per controller, with the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from esper.runtime.controller_names import LEARNED, NEVER
from esper.telemetry.statistics import Interval, accuracy_ends
from esper.views.drawing import Axes, Bbox, Figure, MaxNLocator, PercentFormatter, StrMethodFormatter
from esper.views.palette import INK, NEVER_COLOUR, look
from esper.views.plots import legend_above, save, say_empty, style

MARKER = 12.0
"""Side of the square around a marker that names leave free, in pixels."""

DIRECTIONS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
DISTANCES = (8.0, 22.0, 40.0, 60.0, 90.0)
"""Sides of a marker, and distances from it in points, at which its name may be."""

LAST = DISTANCES[-1], DIRECTIONS[-1]

FROM = "offset points"

LINE = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.8}
"""Line from a name to its marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A score to plot.

    Attributes:
        name: name in the title.
        label: label of its axis.
        better: 1 if higher is better, -1 if lower.
        spec: format of a level.
    """

    name: str
    label: str
    better: int
    spec: str


ACCURACY = Measure(name="accuracy", label="test accuracy", better=1, spec=".1%")
BITS = Measure(name="predicting text", label="test bits per byte", better=-1, spec=".3f")
RETURN = Measure(name="return", label="return, points", better=1, spec="+.2f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A cost to plot against.

    Attributes:
        label: label of its axis.
        whole: true if it is a whole number.
    """

    label: str
    whole: bool


PARAMETERS = Cost(label="added parameters", whole=True)
FLOPS = Cost(label="training FLOPs, as a multiple of the host alone", whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Cost and score of one controller over the held-out hosts.

    Attributes:
        name: name of the controller.
        cost: parameters of the modules kept, or training FLOPs, mean over hosts.
        score: score of the final networks; accuracy as a fraction of 1.
    """

    name: str
    cost: Interval
    score: Interval


def pareto(points: Sequence[FrontierPoint], measure: Measure = ACCURACY) -> list[FrontierPoint]:
    """Return the points that no other one dominates, from the cheapest to the dearest.

    A point dominates another if it costs at most as much and has at least as good a score, and is strictly better in
    one of the two. Compared by the estimates.
    """

    def beats(a: FrontierPoint, b: FrontierPoint) -> bool:
        cost = a.cost.estimate, b.cost.estimate
        gain = measure.better * a.score.estimate, measure.better * b.score.estimate
        return cost[0] <= cost[1] and gain[0] >= gain[1] and (cost[0] < cost[1] or gain[0] > gain[1])

    best = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(best, key=lambda point: point.cost.estimate)


def frontier(points: Sequence[FrontierPoint], path: Path, measure: Measure = ACCURACY, cost: Cost = PARAMETERS) -> None:
    """Draw markers with 95 % bars both ways, a line through the Pareto frontier, and never-grow as a dashed level.

    Better is always up.

    Args:
        points: one point per controller; for an empty list the picture says that there are none.
        path: PNG to write.
        measure: the score.
        cost: the cost.
    """
    figure = Figure(figsize=(8.0, 5.2), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(f"What {measure.name} costs: held-out hosts, mean with 95 % interval", fontsize=12, color=INK)
    style(axes)
    axes.set_xlabel(cost.label)
    axes.set_ylabel(measure.label)
    if measure is ACCURACY:
        points = [replace(point, score=_clipped(point.score)) for point in points]
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if cost.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if cost.whole else "{x:.4g} ×"))
    if not points:
        say_empty(axes, "no controller measured")
        save(figure, path)
        return
    best = pareto(points, measure)
    axes.plot(
        [point.cost.estimate for point in best],
        [point.score.estimate for point in best],
        color="#9DB8CC",
        linewidth=2.2,
        zorder=1.5,
        label="Pareto frontier",
    )
    for point in points:
        if point.name == NEVER:
            level = point.score.estimate
            label = f"never grow ({level:{measure.spec}})"
            axes.axhline(level, color=NEVER_COLOUR, linestyle="--", linewidth=1.4, zorder=1.4, label=label)
        _draw(axes, point)
    axes.margins(x=0.1, y=0.12)
    if measure.better < 0:
        axes.invert_yaxis()
    if all(point.cost.low >= 0.0 for point in points):
        left, right = axes.get_xlim()
        axes.set_xlim(left=max(left, -0.05 * right))
    legend_above(axes, 2)
    figure.draw_without_rendering()  # lays the figure out: labels are placed by what they cover
    figure.set_layout_engine("none")
    _name(axes, points)
    save(figure, path)


def _clipped(accuracy: Interval) -> Interval:
    low, high = accuracy_ends(accuracy.low, accuracy.high).tolist()
    return accuracy._replace(low=low, high=high)


def _name(axes: Axes, points: Sequence[FrontierPoint]) -> None:
    """Write each controller's name near its marker, where it covers neither names, markers, bars nor the level of never
    growing; with a line to the marker if it is farther away.
    """
    taken = [box for point in points for box in _covered(axes, point)]
    inside = axes.get_window_extent()
    for point in points:
        centre = point.cost.estimate, point.score.estimate
        for distance, (x, y) in product(DISTANCES, DIRECTIONS):
            offset = x * distance, y * distance
            across, up = {1: "left", 0: "center", -1: "right"}[x], {1: "bottom", 0: "center", -1: "top"}[y]
            colour = look(point.name).colour
            label = axes.annotate(
                point.name, centre, offset, textcoords=FROM, ha=across, va=up, fontsize=9, color=colour, zorder=5
            )
            box = label.get_window_extent()
            free = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
            if (free and not any(box.overlaps(other) for other in taken)) or (distance, (x, y)) == LAST:
                taken.append(box)
                if distance > DISTANCES[0]:
                    axes.annotate("", centre, offset, textcoords=FROM, arrowprops=LINE, zorder=1.6)
                break
            label.remove()


def _covered(axes: Axes, point: FrontierPoint) -> list[Bbox]:
    """Return the boxes in pixels of a marker, of its bars, and of the level of never growing."""
    cost, gain = point.cost, point.score
    (x0, y0), (x, y), (x1, y1) = axes.transData.transform(
        [(cost.low, gain.low), (cost.estimate, gain.estimate), (cost.high, gain.high)]
    )
    half = MARKER / 2
    found = [
        Bbox.from_extents(x - half, y - half, x + half, y + half),
        Bbox.from_extents(x0, y - 1, x1, y + 1),
        Bbox.from_extents(x - 1, min(y0, y1), x + 1, max(y0, y1)),
    ]
    whole = axes.get_window_extent()
    return [*found, Bbox.from_extents(whole.x0, y - 1, whole.x1, y + 1)] if point.name == NEVER else found


def _draw(axes: Axes, point: FrontierPoint) -> None:
    colour, marker = look(point.name)
    cost, gain = point.cost, point.score
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
