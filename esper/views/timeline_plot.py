"""The picture of one grown host: what every slot went through, and what it did to accuracy.

Axis legend: T = host epochs, S = slots in canonical order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from esper.blueprints import blueprint_ids
from esper.growth import Stage
from esper.telemetry.timeline import EpisodeTimeline
from esper.views.drawing import Artist, Axes, Figure, Line2D, MaxNLocator, Patch, PercentFormatter
from esper.views.palette import CONTROLLER_COLOUR, NEVER_COLOUR, STAGE_COLOURS
from esper.views.plots import INK, save, style

OP_MARKERS: dict[str, str] = {
    "GERMINATE": "^",
    "CULL": "X",
    "FOSSILIZE": "D",
    "SET_ALPHA_TARGET": "o",
    "EXTEND": ">",
}
MARKS, BAND = 0.2, 0.52
"""A slot's lane has height 1: op marks below, the band with its stages, module labels above."""
LABEL_SIZE = 8.5
LABEL_EPOCHS_PER_LETTER = 0.0062
"""Width of a letter of a blueprint label, as a share of the episode, at :data:`LABEL_SIZE`."""


class Run(NamedTuple):
    """Epochs ``start`` to ``stop`` (exclusive) with one value."""

    value: int
    start: int
    stop: int


def runs(values: Sequence[int]) -> Iterator[Run]:
    """Stretches of equal values."""
    start = 0
    for value, group in groupby(values):
        stop = start + sum(1 for _ in group)
        yield Run(value, start, stop)
        start = stop


def slot_timeline(timeline: EpisodeTimeline, path: Path, slot_ids: Sequence[str]) -> None:
    """One lane per slot with its stages, module, alpha and ops; beneath, the host's accuracy against its twin's.

    Args:
        timeline: the episode.
        path: PNG to write.
        slot_ids: S slot ids in canonical order.

    Raises:
        ValueError: not one id per slot.
    """
    num_epochs, num_slots = timeline.stages.shape
    if len(slot_ids) != num_slots:
        raise ValueError(f"{len(slot_ids)} slot ids for {num_slots} slots")
    figure = Figure(figsize=(10.0, 3.4 + 0.75 * num_slots), layout="constrained")
    lanes, accuracy = figure.subplots(2, 1, sharex=True, height_ratios=(0.75 * num_slots + 0.3, 2.0))
    title = f"One episode under the {timeline.controller} controller: host {timeline.instance} ({timeline.family})"
    figure.suptitle(title, fontsize=12, color=INK)
    for slot in range(num_slots):
        _draw_lane(lanes, timeline, slot, top=float(num_slots - slot))
    _draw_ops(lanes, timeline)
    lanes.set_ylim(0.0, num_slots + 0.12)
    lanes.set_yticks([num_slots - slot - 1 + MARKS + BAND / 2 for slot in range(num_slots)], slot_ids)
    style(lanes, grid=False)
    lanes.tick_params(axis="y", length=0)
    lanes.spines["left"].set_visible(False)
    _draw_accuracy(accuracy, timeline)
    accuracy.set_xlim(0, max(num_epochs, 1))
    accuracy.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy.set_xlabel("host epochs trained")
    figure.legend(handles=_legend(timeline), loc="outside right upper", frameon=False, fontsize=8.5)
    save(figure, path)


def _draw_lane(axes: Axes, timeline: EpisodeTimeline, slot: int, top: float) -> None:
    base = top - 1.0 + MARKS
    for stage, start, stop in runs(timeline.stages[:, slot].tolist()):
        axes.broken_barh(
            [(start, stop - start)], (base, BAND), facecolor=STAGE_COLOURS[Stage(stage).name], edgecolor="white"
        )
    names = blueprint_ids()
    modules = [run for run in runs(timeline.blueprints[:, slot].tolist()) if run.value >= 0]
    num_epochs = len(timeline.stages)
    ends = [run.start for run in modules[1:]] + [num_epochs] * bool(modules)
    for module, end in zip(modules, ends, strict=True):
        label = names[module.value]
        room = end - module.start
        size = LABEL_SIZE * min(1.0, room / (num_epochs * LABEL_EPOCHS_PER_LETTER * (len(label) + 1)))
        axes.text(module.start, base + BAND + 0.04, label, fontsize=max(size, 5.0), color=INK)
        # Alpha is measured at the end of each epoch; a module enters at 0.
        alphas = [0.0, *timeline.alphas[module.start : module.stop, slot].tolist()]
        epochs = range(module.start, module.stop + 1)
        axes.plot(epochs, [base + alpha * BAND for alpha in alphas], color="black", linewidth=1.4, zorder=3)


def _draw_ops(axes: Axes, timeline: EpisodeTimeline) -> None:
    num_slots = timeline.stages.shape[1]
    for epoch, (op, slot, success) in enumerate(timeline.ops):
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
    style(axes)
    axes.set_ylabel("val accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if not len(timeline.stages):
        axes.text(0.5, 0.5, "no epochs recorded", transform=axes.transAxes, ha="center", va="center", color=INK)
        return
    epochs = range(1, len(timeline.stages) + 1)
    host = timeline.val_accuracy.tolist()
    axes.plot(epochs, host, color=CONTROLLER_COLOUR, linewidth=1.8, label=f"grown ({host[-1]:.1%} at the end)")
    if timeline.twin_accuracy is not None:
        twin = timeline.twin_accuracy.tolist()
        label = f"never-grown twin ({twin[-1]:.1%})"
        axes.plot(epochs, twin, color=NEVER_COLOUR, linestyle="--", linewidth=1.6, label=label)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize=9, borderaxespad=0.2)


def _legend(timeline: EpisodeTimeline) -> list[Artist]:
    """Keys of what the lanes show, and of nothing else."""
    stages = [Stage(index) for index in sorted(set(timeline.stages.flatten().tolist()))]
    keys: list[Artist] = [Patch(facecolor=STAGE_COLOURS[stage.name], label=stage.name.lower()) for stage in stages]
    keys.append(Line2D([], [], color="black", linewidth=1.4, label="alpha (0 to 1)"))
    drawn = [mark for mark in timeline.ops if mark.slot is not None]
    for op, marker in OP_MARKERS.items():
        if any(mark.op == op for mark in drawn):
            keys.append(Line2D([], [], color=INK, marker=marker, linestyle="none", label=op))
    if not all(mark.success for mark in drawn):
        label = "hollow: not executed"
        keys.append(Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="none", label=label))
    return keys
