"""Slot timelines of runs: the picture that a run drew of a held-out host, or one pieced together from its events."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from esper.report.figures import WIDTH, plain
from esper.report.folders import LEARNED, Run, parse
from esper.report.grouping import Configuration
from esper.report.numbers import Quantity
from esper.runtime.run_folder import RunFolder, RunState
from esper.telemetry.slot_trace import DORMANT, KINDS, Episode, SlotTrace
from esper.views.drawing import Figure, Patch
from esper.views.palette import STAGE_COLOURS
from esper.views.plots import INK, style

TAIL_BYTES = 4 << 20
"""How much of the end of an event file is read: many episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One episode of one run.

    Attributes:
        run: whose.
        caption: what is seen.
        png: the run's own picture as a data URL, or
        figure: a new one from its events.
    """

    run: Run
    caption: str
    png: str | None = None
    figure: Figure | None = None


def timeline(configuration: Configuration, score: Quantity) -> Timeline | None:
    """Of the run in the middle of a configuration's scores; ``None`` where no run has anything to show."""
    for run in _from_the_middle(configuration.runs, score):
        path = RunFolder(run.path).plots / f"slot_timeline_{LEARNED}.png"
        if path.is_file():
            text = base64.b64encode(path.read_bytes()).decode("ascii")
            caption = f"{configuration.label}: a held-out host under the controller of {run.path.name}"
            return Timeline(run=run, caption=caption, png=f"data:image/png;base64,{text}")
        trace = read_trace(RunFolder(run.path).events, TAIL_BYTES)
        if trace.finished:
            environment, episode = max(trace.finished.items(), key=lambda item: (_kept(item[1]), -item[0]))
            caption = f"{configuration.label}: the last whole episode of environment {environment} of {run.path.name}"
            return Timeline(run=run, caption=caption, figure=draw(episode, trace.slot_ids, _num_epochs(run)))
    return None


def _from_the_middle(runs: Sequence[Run], score: Quantity) -> list[Run]:
    """Finished runs first, those with middling scores before the others."""
    values = sorted(value for run in runs if (value := score.of(run)) is not None)
    middle = values[len(values) // 2] if values else 0.0

    def rank(run: Run) -> tuple[bool, float]:
        value = score.of(run)
        return run.state != RunState.FINISHED, float("inf") if value is None else abs(value - middle)

    return sorted(runs, key=rank)


def _kept(episode: Episode) -> tuple[bool, int]:
    return any(change.stage == "FOSSILIZED" for change in episode.changes), len(episode.changes)


def _num_epochs(run: Run) -> int | None:
    section = run.config.get("env")
    value = section.get("num_epochs") if isinstance(section, dict) else None
    return value if isinstance(value, int) else None


def read_trace(path: Path, tail_bytes: int) -> SlotTrace:
    """The slots of a run from the end of its event file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - tail_bytes)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return SlotTrace()
    trace = SlotTrace(from_start=start == 0)
    for line in lines:  # the first may be a part, which is no record
        if any(kind.encode() in line for kind in KINDS):
            record = parse(line.decode("utf-8", errors="replace"))
            if record is not None:
                trace.take(record)
    return trace


def draw(episode: Episode, slot_ids: Sequence[str], num_epochs: int | None) -> Figure:
    """A lane per slot, coloured by stage, with the module's blueprint."""
    end = max([change.epochs for change in episode.changes] + [num_epochs or 1])
    figure = Figure(figsize=(WIDTH, 1.6 + 0.5 * len(slot_ids)), layout="constrained")
    axes = figure.subplots()
    used = {}
    for place, slot in enumerate(slot_ids):
        changes = [change for change in episode.changes if change.slot == slot]
        starts = [0, *(change.epochs for change in changes)]
        stages = [DORMANT, *(change.stage for change in changes)]
        for start, stop, stage in zip(starts, [*starts[1:], end], stages, strict=True):
            colour = STAGE_COLOURS.get(stage, INK)
            if stop > start:
                axes.broken_barh([(start, stop - start)], (place - 0.32, 0.64), facecolor=colour, edgecolor="white")
                used[stage] = colour
        for change in changes:
            if change.stage == "GERMINATED":
                axes.text(
                    change.epochs, place - 0.36, f" {plain(str(change.blueprint))}", fontsize=8, color=INK, va="bottom"
                )
    axes.set_yticks(range(len(slot_ids)), list(slot_ids))
    axes.set_ylim(len(slot_ids) - 0.4, -0.8)
    axes.set_xlim(0, end)
    style(axes, grid=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("host epochs trained")
    handles = [Patch(facecolor=used[stage], label=stage.lower()) for stage in STAGE_COLOURS if stage in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return figure
