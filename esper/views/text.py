"""Terminal output as pure functions from metrics to text and tables."""

from __future__ import annotations

import math
import re
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
from esper.telemetry.results import Measure
from esper.telemetry.statistics import Mean
from esper.views.palette import OP_COLOURS, STAGE_COLOURS

BLOCKS = "▁▂▃▄▅▆▇█"
ABSENT = "–"
_SIGN = re.compile(r"^[+\- ]?")
LABEL_WIDTH = 16
BAR_WIDTH = 30
USUAL_WIDTH = 80
"""Terminal width above which bars are longer than :data:`BAR_WIDTH`."""
MOST_DECIMALS = 6
LIVE_WIDTH = 76
"""Terminal width at which the live view shows numbers beside its bars."""


def clock(seconds: float | None) -> str:
    """Format seconds as ``m:ss``, or ``h:mm:ss`` from an hour on."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def formatted(value: float, spec: str) -> str:
    """Format a number by a specification such as ``+.2f``; one that rounds to 0 has no minus sign."""
    return format(value, _SIGN.sub(r"\g<0>z", spec, count=1))


def number(value: float | None, spec: str, scale: float = 1.0, unit: str = "") -> str:
    """Format a number, or a dash for a value that was not measured."""
    return ABSENT if value is None else formatted(value * scale, spec) + unit


def with_spread(value: Measure | None, spec: str, scale: float = 1.0) -> str:
    """Format ``mean ± standard error`` or ``estimate [low,high]``; a missing error is omitted, the sign always
    shown. A standard error that would round to 0 gets the decimals that it needs, and its mean as many.
    """
    if value is None:
        return ABSENT
    if isinstance(value, Mean) and value.sem:
        spec = _with_decimals_for(value.sem * scale, spec)
    middle = formatted(value[0] * scale, spec)
    if isinstance(value, Mean):
        return middle if value.sem is None else f"{middle} ± {value.sem * scale:{spec.lstrip('+')}}"
    low, high = (formatted(end * scale, spec) for end in (value.low, value.high))
    return f"{middle} [{low},{high}]"


def _with_decimals_for(spread: float, spec: str) -> str:
    """Return the specification with as many decimals, at most :data:`MOST_DECIMALS`, as show more than zeros."""
    start, _, rest = spec.partition(".")
    decimals = int(rest.rstrip("f"))
    while decimals < MOST_DECIMALS and round(spread, decimals) == 0:
        decimals += 1
    return f"{start}.{decimals}f"


def measured(metrics: Metrics, mean: str, sem: str) -> Mean | None:
    """Read a mean and its standard error from metrics."""
    value = metrics.get(mean)
    return None if value is None else Mean(value, metrics.get(sem))


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw the last ``width`` values as block characters; a value that was not measured is a blank."""
    shown = [value if value is not None and math.isfinite(value) else None for value in list(values)[-width:]]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(BLOCKS) - 1) or 1.0
    return "".join(" " if value is None else BLOCKS[round((value - low) / step)] for value in shown)


def plain_line(iteration: int, num_iterations: int, eta: float | None, metrics: Metrics) -> str:
    """Format one iteration in one aligned line."""
    width = len(str(num_iterations))
    gain = with_spread(measured(metrics, RETURN, RETURN_SEM), "+.2f")
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
    """Make the body of the live view: curves against the never-grow line, op mix, slot stages, size and speed.

    Args:
        history: metrics of iterations.
        width: width of the terminal; in a narrow one, numbers are below the graphics.
    """
    metrics = history[-1]
    accuracy, never = measured(metrics, VAL, VAL_SEM), metrics.get(NEVER)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=LABEL_WIDTH, style="bold")
    narrow = width < LIVE_WIDTH
    bar = max(width - LABEL_WIDTH - 2, 1) if narrow else BAR_WIDTH + max(width - USUAL_WIDTH, 0)
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
        f"{with_spread(measured(metrics, RETURN, RETURN_SEM), '+.2f')}   never 0",
    )
    add(
        "final val",
        sparkline([row.get(VAL) for row in history], bar),
        f"{with_spread(accuracy, '.1f', 100)} %   never {number(never, '.1f', 100)} %",
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
    """Draw one bar per name whose share is above zero, in the order of the palette, and its label."""
    for name, colour in colours.items():
        share = metrics.get(prefix + name)
        if share:
            yield Text("█" * max(1, round(share * width)), style=colour), f"{share * 100:4.0f} %  {name}"
