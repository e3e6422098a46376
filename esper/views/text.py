"""What the terminal shows: pure functions from metrics to text and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from esper.runtime.records import Metrics
from esper.telemetry.metric_names import (
    ADDED,
    CHOICE_SHARE,
    FOSSILIZED,
    NEVER,
    RETURN,
    RETURN_SEM,
    SPS,
    STAGE_SHARE,
    VAL,
    VAL_SEM,
)
from esper.telemetry.summary import ControllerSummary, Mean
from esper.views.folding import FoldingTable
from esper.views.palette import OP_COLOURS, STAGE_COLOURS

BLOCKS = "▁▂▃▄▅▆▇█"
ABSENT = "–"
LABEL_WIDTH = 16
BAR_WIDTH = 30
LIVE_WIDTH = 76
"""Columns of a terminal in which the live view has its numbers beside its bars."""


def clock(seconds: float | None) -> str:
    """``m:ss``, or ``h:mm:ss`` from an hour on."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float | None, spec: str, scale: float = 1.0, unit: str = "") -> str:
    """A formatted number, or a dash for what was not measured."""
    return ABSENT if value is None else f"{value * scale:{spec}}{unit}"


def with_error(mean: Mean | None, spec: str, scale: float = 1.0) -> str:
    """``mean ± standard error``; the error is left out where there is none, its sign always."""
    if mean is None:
        return ABSENT
    error = "" if mean.sem is None else f" ± {mean.sem * scale:{spec.lstrip('+')}}"
    return f"{mean.mean * scale:{spec}}{error}"


def measured(metrics: Metrics, mean: str, sem: str) -> Mean | None:
    """A mean and its standard error out of metrics."""
    value = metrics.get(mean)
    return None if value is None else Mean(value, metrics.get(sem))


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last ``width`` values as block characters; what was not measured is a blank."""
    shown = [value if value is not None and math.isfinite(value) else None for value in list(values)[-width:]]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(BLOCKS) - 1) or 1.0
    return "".join(" " if value is None else BLOCKS[round((value - low) / step)] for value in shown)


def plain_line(iteration: int, num_iterations: int, eta: float | None, metrics: Metrics) -> str:
    """One iteration in one aligned line."""
    width = len(str(num_iterations))
    gain = with_error(measured(metrics, RETURN, RETURN_SEM), "+z.2f")
    return "  ".join(
        (
            f"iter {iteration:{width}d}/{num_iterations}",
            f"eta {clock(eta):>5}",
            f"return {gain:<12}",
            f"val {number(metrics.get(VAL), '5.1f', 100, '%'):>6}",
            f"never {number(metrics.get(NEVER), '5.1f', 100, '%'):>6}",
            f"wait {number(metrics.get(CHOICE_SHARE + 'WAIT'), '3.0f', 100, '%'):>4}",
            f"params {number(metrics.get(ADDED), '+.0f'):>5}",
            f"kept {number(metrics.get(FOSSILIZED), '.1f'):>3}",
            f"{number(metrics.get(SPS), '.0f'):>4} env-epochs/s",
        )
    )


def live_table(history: Sequence[Metrics], width: int = LIVE_WIDTH) -> Table:
    """The body of the live view: curves against the never-grow line, op mix, slot stages, size and speed.

    Args:
        history: metrics of iterations.
        width: columns of the terminal; where they are few, numbers stand below what is drawn.
    """
    metrics = history[-1]
    accuracy, never = measured(metrics, VAL, VAL_SEM), metrics.get(NEVER)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=LABEL_WIDTH, style="bold")
    narrow = width < LIVE_WIDTH
    bar = max(width - LABEL_WIDTH - 2, 1) if narrow else BAR_WIDTH
    table.add_column(width=bar)
    if not narrow:
        table.add_column(no_wrap=True)

    def add(label: str, drawn: str | Text, numbers: str) -> None:
        if narrow:
            table.add_row(label, drawn)
            table.add_row("", numbers)
        else:
            table.add_row(label, drawn, numbers)

    add(
        "return",
        sparkline([row.get(RETURN) for row in history], bar),
        f"{with_error(measured(metrics, RETURN, RETURN_SEM), '+z.2f')}   never 0",
    )
    add(
        "final val",
        sparkline([row.get(VAL) for row in history], bar),
        f"{with_error(accuracy, '.1f', 100)} %   never {number(never, '.1f', 100)} %",
    )
    add(
        "grown",
        f"{number(metrics.get(ADDED), '+.0f')} parameters, {number(metrics.get(FOSSILIZED), '.1f')} kept",
        f"{number(metrics.get(SPS), '.0f')} env-epochs/s",
    )
    for title, prefix, colours in (
        ("ops, if a choice", CHOICE_SHARE, OP_COLOURS),
        ("slots", STAGE_SHARE, STAGE_COLOURS),
    ):
        for place, row in enumerate(_bars(metrics, prefix, colours, bar)):
            if place == 0:
                table.add_row()
            add(title if place == 0 else "", *row)
    return table


def _bars(metrics: Metrics, prefix: str, colours: Mapping[str, str], width: int) -> Iterator[tuple[Text, str]]:
    """One bar per name whose share is above zero, in the order of the palette, and what it says."""
    for name, colour in colours.items():
        share = metrics.get(prefix + name)
        if share:
            yield Text("█" * max(1, round(share * width)), style=colour), f"{share * 100:4.0f} %  {name}"


def closing_table(rows: Sequence[ControllerSummary], title: str) -> Table:
    """Controllers side by side, numbers as mean ± standard error over hosts; bits per byte for text. In 80 columns."""
    counts = sorted({row.num_hosts for row in rows})
    hosts = "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    table = FoldingTable(title, f"mean ± standard error over {hosts} hosts; WAIT where there was a choice")
    table.add("controller", no_wrap=True)
    text = any(row.val_bits for row in rows)
    scores = ("val\nbits/byte", "test\nbits/byte") if text else ("val %", "test %")
    for header in ("return", *scores, "added\nparameters", "WAIT %"):
        table.add(header, justify="right", no_wrap=True)
    table.add("kept", "modules kept", justify="right", no_wrap=True)
    for row in rows:
        accuracies = with_error(row.val_accuracy, ".1f", 100), with_error(row.test_accuracy, ".1f", 100)
        bits = with_error(row.val_bits, ".2f"), with_error(row.test_bits, ".2f")
        table.add_row(
            row.name,
            with_error(row.episode_return, "+z.2f"),
            *(bits if text else accuracies),
            with_error(row.added_parameters, ".0f"),
            with_error(row.wait_share, ".0f", 100),
            # With its error, the table would not go into 80 columns.
            number(row.num_fossilized and row.num_fossilized.mean, ".1f"),
        )
    return table
