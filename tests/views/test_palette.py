"""A controller has one colour and marker, in every picture and whoever else is in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from matplotlib.colors import to_hex

from esper.controllers import CONTROLLERS
from esper.runtime.controller_names import LEARNED, SAMPLED
from esper.telemetry.metric_names import RETURN, VAL
from esper.telemetry.statistics import Interval
from esper.telemetry.timeline import EpisodeTimeline, OpMark
from esper.views import frontier_plot, plots, timeline_plot
from esper.views.frontier_plot import FrontierPoint
from esper.views.palette import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = [*CONTROLLERS, SAMPLED, "users_own"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that would have been saved."""
    drawn: list[Figure] = []
    for module in (plots, frontier_plot, timeline_plot):
        monkeypatch.setattr(module, "save", lambda figure, path: drawn.append(figure))
    return drawn


def timeline(controller: str) -> EpisodeTimeline:
    return EpisodeTimeline(
        stages=torch.ones(2, 1, dtype=torch.int64),
        slot_ids=("r0c0",),
        alphas=torch.zeros(2, 1),
        blueprints=((None,),) * 2,
        ops=(OpMark("WAIT", None, True),) * 2,
        val_accuracy=torch.tensor([0.5, 0.6]),
        twin_accuracy=None,
        family="intact",
        instance=0,
        controller=controller,
    )


def colours(axes: Axes) -> dict[str, str]:
    """Colour of each line by its label."""
    return {str(line.get_label()): to_hex(line.get_color()).upper() for line in axes.lines}


def in_frontiers(names: list[str], figures: list[Figure]) -> dict[str, tuple[str, object]]:
    """Colour and marker of each controller among these in one picture."""
    points = [FrontierPoint(name=name, cost=at(x), score=at(0.5 + x)) for x, name in enumerate(names)]
    frontier_plot.frontier(points, Path("frontier.png"))
    figure = figures.pop()
    marks = [bars.lines[0] for bars in figure.axes[0].containers]  # type: ignore[attr-defined]
    return {
        name: (to_hex(mark.get_color()).upper(), mark.get_marker()) for name, mark in zip(names, marks, strict=True)
    }


def at(value: float) -> Interval:
    return Interval(value, value, value, True)


def test_every_registered_controller_looks_the_same_in_all_pictures(figures: list[Figure]) -> None:
    together, turned = in_frontiers(NAMES, figures), in_frontiers(NAMES[::-1], figures)
    assert together == turned == {name: look(name) for name in NAMES}
    assert len(set(together.values())) == len(NAMES), "two controllers that look alike in one picture"
    for name in NAMES:
        timeline_plot.slot_timeline(timeline(name), Path("timeline.png"))
        assert colours(figures.pop().axes[1])["grown (60.0% at the end)"] == together[name][0]
    plots.learning_curve([{"iteration": number, RETURN: 1.0, VAL: 0.5} for number in (1, 2)], Path("curve.png"))
    assert colours(figures.pop().axes[0])["controller"] == together[LEARNED][0]
