"""Picture of one grown host: stages and actions of every slot, and accuracy.

Axis legend: T = host epochs, S = slots in canonical order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from esper.growth import Stage
from esper.telemetry.timeline import EpisodeTimeline
from esper.views.drawing import Artist, Axes, Figure, Line2D, MaxNLocator, Patch, PercentFormatter
from esper.views.palette import INK, NEVER_COLOUR, OP_MARKERS, STAGE_COLOURS, look
from esper.views.plots import legend_above, save, say_empty, style

WIDTH = 10.0
"""Width of the figure of a run, in inches."""
MARKS, BAND = 0.2, 0.52
"""Heights within a slot's lane of height 1: op marks below, the band with its stages, module labels above."""
LABEL_SIZE = 8.5
LABEL_EPOCHS_PER_LETTER = 0.0062
"""Width of a letter of a blueprint label, as a share of the episode, at :data:`LABEL_SIZE` and :data:`WIDTH`."""


T = TypeVar("T")


class Run(NamedTuple, Generic[T]):
    """Epochs ``start`` to ``stop`` (exclusive) with equal values."""

    value: T
    start: int
    stop: int


def runs(values: Sequence[T]) -> Iterator[Run[T]]:
    """Divide values into runs of equal ones."""
    start = 0
    for value, group in groupby(values):
        stop = start + sum(1 for _ in group)
        yield Run(value, start, stop)
        start = stop


def slot_timeline(timeline: EpisodeTimeline, path: Path) -> None:
    """Write the picture of an episode, with a title, as PNG."""
    figure = timeline_figure(timeline)
    title = f"One episode under the {timeline.controller} controller: host {timeline.instance} ({timeline.family})"
    figure.suptitle(title, fontsize=12, color=INK)
    save(figure, path)


def timeline_figure(timeline: EpisodeTimeline, width: float = WIDTH) -> Figure:
    """Draw one lane per slot with its stages, module, alpha and ops, and below the host's accuracy and its twin's.

    What is not known is left out.

    Args:
        timeline: the episode.
        width: width of the figure, in inches; the legend of a narrow one is below.
    """
    num_epochs, num_slots = timeline.stages.shape
    known = timeline.val_accuracy is not None
    figure = Figure(figsize=(width, 3.4 + 0.75 * num_slots - (0 if known else 1.4)), layout="constrained")
    ratios = (0.75 * num_slots + 0.3, 2.0)
    panels = figure.subplots(1 + known, 1, sharex=True, squeeze=False, height_ratios=ratios[: 1 + known])[:, 0]
    lanes, last = panels[0], panels[-1]
    for slot in range(num_slots):
        _draw_lane(lanes, timeline, slot, top=float(num_slots - slot), scale=width / WIDTH)
    _draw_ops(lanes, timeline)
    lanes.set_ylim(0.0, num_slots + 0.12)
    lanes.set_yticks([num_slots - slot - 1 + MARKS + BAND / 2 for slot in range(num_slots)], timeline.slot_ids)
    style(lanes, grid=False)
    lanes.tick_params(axis="y", length=0)
    lanes.spines["left"].set_visible(False)
    if known:
        _draw_accuracy(last, timeline)
    last.set_xlim(0, max(num_epochs, 1))
    last.xaxis.set_major_locator(MaxNLocator(integer=True))
    last.set_xlabel("host epochs trained")
    keys = _legend(timeline)
    if width == WIDTH:
        figure.legend(handles=keys, loc="outside right upper", frameon=False, fontsize=8.5)
    else:
        figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _draw_lane(axes: Axes, timeline: EpisodeTimeline, slot: int, top: float, scale: float) -> None:
    base = top - 1.0 + MARKS
    for stage, start, stop in runs(timeline.stages[:, slot].tolist()):
        axes.broken_barh(
            [(start, stop - start)], (base, BAND), facecolor=STAGE_COLOURS[Stage(stage).name], edgecolor="white"
        )
    modules = [run for run in runs([row[slot] for row in timeline.blueprints]) if run.value is not None]
    num_epochs = len(timeline.stages)
    ends = [run.start for run in modules[1:]] + [num_epochs] * bool(modules)
    for module, end in zip(modules, ends, strict=True):
        label = str(module.value)
        room = end - module.start
        size = LABEL_SIZE * min(1.0, scale * room / (num_epochs * LABEL_EPOCHS_PER_LETTER * (len(label) + 1)))
        axes.text(module.start, base + BAND + 0.04, label.replace("$", r"\$"), fontsize=max(size, 5.0), color=INK)
        if timeline.alphas is None:
            continue
        # Alpha is measured at the end of each epoch; a module enters at 0.
        alphas = [0.0, *timeline.alphas[module.start : module.stop, slot].tolist()]
        epochs = range(module.start, module.stop + 1)
        axes.plot(epochs, [base + alpha * BAND for alpha in alphas], color="black", linewidth=1.4, zorder=3)


def _draw_ops(axes: Axes, timeline: EpisodeTimeline) -> None:
    num_slots = timeline.stages.shape[1]
    for epoch, (op, slot, success) in enumerate(timeline.ops or ()):
        if slot is None:
            continue
        axes.plot(
            epoch,
            num_slots - slot - 1 + MARKS / 2,
            marker=OP_MARKERS[op],
            markersize=6.0,
            markerfacecolor=INK if success else "white",
            markeredgecolor=INK,
            clip_on=False,
            zorder=4,
        )


def _draw_accuracy(axes: Axes, timeline: EpisodeTimeline) -> None:
    assert timeline.val_accuracy is not None, "asked where it is known"
    style(axes)
    axes.set_ylabel("val accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if not len(timeline.stages):
        say_empty(axes, "no epochs recorded")
        return
    epochs = range(1, len(timeline.stages) + 1)
    host = timeline.val_accuracy.tolist()
    colour = look(timeline.controller).colour
    axes.plot(epochs, host, color=colour, linewidth=1.8, label=f"grown ({host[-1]:.1%} at the end)")
    if timeline.scored is not None and f"{timeline.scored:.1%}" != f"{host[-1]:.1%}":
        label = f"scored, without what was not kept ({timeline.scored:.1%})"
        axes.plot(epochs[-1:], [timeline.scored], "D", color=colour, markersize=6.0, clip_on=False, label=label)
    if timeline.twin_accuracy is not None:
        twin = timeline.twin_accuracy.tolist()
        label = f"never-grown twin ({twin[-1]:.1%})"
        axes.plot(epochs, twin, color=NEVER_COLOUR, linestyle="--", linewidth=1.6, label=label)
    legend_above(axes, 3)


def _legend(timeline: EpisodeTimeline) -> list[Artist]:
    """Return the legend entries of what the lanes show."""
    stages = [Stage(index) for index in sorted(set(timeline.stages.flatten().tolist()))]
    keys: list[Artist] = [Patch(facecolor=STAGE_COLOURS[stage.name], label=stage.name.lower()) for stage in stages]
    if timeline.alphas is not None:
        keys.append(Line2D([], [], color="black", linewidth=1.4, label="alpha (0 to 1)"))
    drawn = [mark for mark in timeline.ops or () if mark.slot is not None]
    for op, marker in OP_MARKERS.items():
        if any(mark.op == op for mark in drawn):
            keys.append(Line2D([], [], color=INK, marker=marker, linestyle="none", label=op))
    if not all(mark.success for mark in drawn):
        label = "hollow: not executed"
        keys.append(Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="none", label=label))
    return keys
