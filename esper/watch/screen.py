"""View of a run: pure functions from its progress to objects that rich draws, made for 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from esper.report.folders import KILLED, UNKNOWN
from esper.runtime.run_folder import RunState
from esper.telemetry.metric_names import ADDED, CHOICE_SHARE, FOSSILIZED, NEVER, RETURN, RETURN_SEM, SPS, VAL
from esper.views.palette import CONTROLLER_COLOUR, NEVER_COLOUR, OP_COLOURS, STAGE_COLOURS
from esper.views.text import ABSENT, BLOCKS, clock, formatted, measured, number, with_spread
from esper.watch.progress import Progress

PLOT_ROWS = 7
AXIS_WIDTH = 9
SMALL_RANGE = 0.1
"""Range of a plot below which two digits after the point do not tell its ends from each other."""
BAR_WIDTH = 24
MAX_ENVIRONMENTS = 96

LETTERS = {
    "DORMANT": "·",
    "GERMINATED": "G",
    "TRAINING": "T",
    "BLENDING": "B",
    "HOLDING": "H",
    "FOSSILIZED": "F",
    "CULLED": "C",
    "EMBARGOED": "E",
    "RESETTING": "R",
}
STATE_STYLES = {
    RunState.RUNNING: "bold cyan",
    RunState.FINISHED: "bold green",
    RunState.FAILED: "bold red",
    RunState.PREEMPTED: "bold yellow",
    KILLED: "bold red",
}


def screen(progress: Progress, width: int) -> RenderableType:
    """Compose the whole view within a number of columns."""
    parts: list[RenderableType | None] = [header(progress, width)]
    if progress.history:
        values = [record.get(RETURN) for record in progress.history]
        parts += [Text("\nreturn per episode, over iterations  ", "bold") + Text("-- never grow (0)", NEVER_COLOUR)]
        parts += [block_plot(values, width, level=0.0), now(progress), _bars(progress, width)]
        parts += [slots(progress, width)]
    parts += [troubles(progress, width)]
    return Group(*(part for part in parts if part is not None))


def header(progress: Progress, width: int) -> Text:
    """Format folder, state, progress, speed and time left."""
    name = progress.folder.path.resolve().name
    state = progress.state or (UNKNOWN if progress.history else "waiting")
    text = Text(name if len(name) <= width else "…" + name[1 - width :], "bold")
    text.append("\n").append(state, STATE_STYLES.get(state, "bold"))
    if progress.num_iterations:
        share = min(progress.iteration / progress.num_iterations, 1.0)
        done = round(share * BAR_WIDTH)
        text.append("  ").append("━" * done, CONTROLLER_COLOUR).append("━" * (BAR_WIDTH - done), "grey37")
    text.append(f"  {progress.iteration}/{progress.num_iterations or '?'}")
    if state == RunState.RUNNING:
        text.append("  " + _phase(progress))
    speed = progress.latest.get(SPS)
    if speed is not None:
        text.append(f"  {speed:,.0f} env-epochs/s")
    if progress.counts:
        counts = ", ".join(f"{name} x{count}" for name, count in progress.counts.most_common())
        where = " (in the events that were read)" if progress.partial else ""
        text.append(f"\n! {counts}{where}", "yellow")
        text.append("" if progress.level is None else f"   telemetry at {progress.level}", "dim")
    if state == "waiting":
        text.append("\nnothing is recorded here yet: waiting for the run to start", "italic")
    elif state == KILLED:
        text.append("\nmarked as running, but its process is gone: killed, or out of memory", "italic")
    elif state == RunState.RUNNING and not progress.history:
        text.append("\npreparing: no iteration recorded yet", "italic")
    return text


def _phase(progress: Progress) -> str:
    if progress.num_iterations and progress.iteration >= progress.num_iterations:
        return "closing evaluation"
    return f"eta {clock(progress.eta())}"


def now(progress: Progress) -> Text:
    """Format the latest metrics in one line."""
    metrics = progress.latest
    gain = with_spread(measured(metrics, RETURN, RETURN_SEM), "+.2f")
    val, never = number(metrics.get(VAL), ".1f", 100, " %"), number(metrics.get(NEVER), ".1f", 100, " %")
    kept = f"{number(metrics.get(ADDED), '+.0f')} parameters, {number(metrics.get(FOSSILIZED), '.1f')} kept"
    return Text(f"return {gain}   val {val}, never {never}   {kept}")


def block_plot(values: Sequence[float | None], width: int, level: float | None = None) -> Text:
    """Draw a plot of block characters, with the latest value in the last column.

    Args:
        values: one per iteration; neighbours are averaged if there are more values than columns. ``None`` leaves a gap.
        width: total number of columns.
        level: a value that is always within the range, marked by dashes in empty cells.
    """
    columns = _columns(values, max(width - AXIS_WIDTH - 1, 8))
    known = [value for value in columns if value is not None]
    if not known:
        return Text(" " * AXIS_WIDTH + "nothing measured yet", "italic")
    low, high = min([*known, *([] if level is None else [level])]), max([*known, *([] if level is None else [level])])
    if high == low:
        low, high = low - 1.0, high + 1.0
    spec = "+.2f" if high - low >= SMALL_RANGE else "+.4f"
    steps = len(BLOCKS) * PLOT_ROWS
    heights = [None if value is None else 1 + round((value - low) / (high - low) * (steps - 1)) for value in columns]
    marked = None if level is None else min(int((level - low) / (high - low) * PLOT_ROWS), PLOT_ROWS - 1)
    text = Text()
    for row in reversed(range(PLOT_ROWS)):
        label = high if row == PLOT_ROWS - 1 else low if row == 0 else None
        text.append(f"{'' if label is None else formatted(label, spec):>{AXIS_WIDTH - 1}} ", "dim")
        for height in heights:
            full = 0 if height is None else height - row * len(BLOCKS)
            if full > 0:
                text.append(BLOCKS[min(full, len(BLOCKS)) - 1], CONTROLLER_COLOUR)
            else:
                text.append("-" if row == marked else " ", NEVER_COLOUR)
        text.append("\n" if row else "")
    return text


def _columns(values: Sequence[float | None], count: int) -> list[float | None]:
    """Average neighbours to ``count`` values; repeat values if there are few."""
    if len(values) <= count:
        return [values[place * len(values) // count] for place in range(count)] if values else []
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    columns: list[float | None] = []
    for start, stop in pairwise(edges):
        known = [value for value in values[start:stop] if value is not None]
        columns.append(math.fsum(known) / len(known) if known else None)
    return columns


def _bars(progress: Progress, width: int) -> Text:
    """Draw the op mix of the latest iteration as bars."""
    text = Text("\nops, where there is a choice", "bold")
    shares = {op: progress.latest.get(CHOICE_SHARE + op) for op in OP_COLOURS}
    if not any(shares.values()):
        return text.append(f"  {ABSENT}", "not bold")
    for op, share in shares.items():
        if share:
            text.append(f"\n{op:<{AXIS_WIDTH + 8}}", "not bold").append(f"{share:4.0%} ", "not bold")
            text.append("█" * max(1, round(share * (width - AXIS_WIDTH - 16))), OP_COLOURS[op])
    return text


def slots(progress: Progress, width: int) -> Text:
    """Show one letter per slot for every environment, with as many environments per line as fit."""
    trace, ids = progress.trace, progress.trace.slot_ids
    text = Text("\nslots of each environment, latest episode", "bold")
    if not trace.running:
        return text.append("  no event yet", "not bold")
    count = max(trace.running) + 1
    cell = len(str(count - 1)) + 1 + max(len(ids), 1)
    per_line = max((width + 2) // (cell + 2), 1)
    text.append(f"  ({', '.join(ids)})" if ids and len(", ".join(ids)) < width - 46 else "", "dim")
    used = set()
    for environment in range(min(count, MAX_ENVIRONMENTS)):
        text.append("\n" if environment % per_line == 0 else "  ")
        text.append(f"{environment:>{cell - 1 - max(len(ids), 1)}} ", "dim")
        episode = trace.latest(environment)
        occupied = {} if episode is None else episode.stages()
        for slot in ids or ("",):
            stage = occupied[slot].stage if slot in occupied else "DORMANT"
            used.add(stage)
            text.append(LETTERS.get(stage, "?"), f"bold {STAGE_COLOURS[stage]}" if slot in occupied else "grey50")
    if count > MAX_ENVIRONMENTS:
        text.append(f"\n… and {count - MAX_ENVIRONMENTS} more", "dim")
    text.append("\n" + "  ".join(f"{LETTERS[stage]} {stage.lower()}" for stage in LETTERS if stage in used), "dim")
    return text


def troubles(progress: Progress, width: int) -> Text | None:
    """Format the latest anomalies and the number of invalid lines; return ``None`` if there is nothing to report."""
    lines = list(progress.troubles)
    if progress.broken:
        lines.append(f"{progress.broken} lines of the run's files were invalid and are skipped")
    if not lines:
        return None
    text = Text("\nlatest anomalies", "bold")
    for line in lines:
        short = textwrap.shorten(line, 3 * width - 10, placeholder=" …")
        text.append("\n" + "\n".join(textwrap.wrap(short, width, subsequent_indent="  ")), "not bold yellow")
    return text
