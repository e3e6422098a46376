"""Tables of controllers on held-out hosts, for the terminal and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rich.console import Group

from esper.growth.actions import OP_NAMES
from esper.runtime.files import write_csv
from esper.telemetry.confidence import LEVEL
from esper.telemetry.results import ResultRow, evaluation_fields, middle
from esper.telemetry.statistics import Mean
from esper.views.folding import FoldingTable
from esper.views.text import number, with_spread

Show: TypeAlias = Callable[[ResultRow], str]
"""Function from a row to the text of a cell."""


class Column(NamedTuple):
    """A column: its header in lines, the function for its cells, and its header in one line if that differs."""

    header: str
    show: Show
    name: str | None = None


def _spread(field: str, spec: str, scale: float = 1.0) -> Show:
    """Format a number with its standard error or interval."""
    return lambda row: with_spread(getattr(row, field), spec, scale)


def _middle(field: str, spec: str, scale: float = 1.0) -> Show:
    """Format a number without its spread."""
    return lambda row: number(middle(getattr(row, field)), spec, scale)


def _share(op: str) -> Column:
    broken = {"GERMINATE": "GERMI\nNATE", "SET_ALPHA_TARGET": "SET_\nALPHA", "FOSSILIZE": "FOSSI\nLIZE"}
    share = lambda row: number(None if row.op_share is None else row.op_share[op], ".0f", 100)  # noqa: E731
    return Column(broken.get(op, op), share, f"{op} %")


PERCENT = f"{100 * LEVEL:g} %"

ACCURACIES = (
    Column("val %", _spread("val_accuracy", ".1f", 100)),
    Column("test %", _spread("test_accuracy", ".1f", 100)),
)
BITS = (
    Column("val\nbits/byte", _spread("val_bits", ".2f")),
    Column("test\nbits/byte", _spread("test_bits", ".2f")),
)
GROWN = (
    Column("added\nparameters", _spread("added_parameters", ".0f")),
    Column("WAIT %", _spread("wait_share", ".0f", 100)),
    Column("kept", _middle("num_fossilized", ".1f"), "modules kept"),  # with its error, 80 columns are not enough
)
"""Columns at the end of training, which fit into a terminal of 80 columns."""

_flops = _middle("flops_ratio", ".2f")

EARNED = (
    Column(f"return [{PERCENT}]", _spread("episode_return", "+.2f")),
    Column("IQM", _middle("return_iqm", "+.2f")),
    Column(f"learned − it [{PERCENT}]", _spread("return_difference", "+.2f")),
    Column("P(learned\nabove it)", _middle("improvement", ".2f")),
)
BECAME = (
    Column("val\n%", _middle("val_accuracy", ".1f", 100)),
    Column("test\n%", _middle("test_accuracy", ".1f", 100)),
    Column(f"learned − it,\ntest % [{PERCENT}]", _spread("test_difference", "+.1f", 100)),
    Column("added\nparams", _middle("added_parameters", ",.0f")),
    Column("FLOPs\nratio", _flops),
    Column("wall\ns", _middle("wall_seconds", ",.0f")),
)
DID = (
    Column("germi\nnated", _middle("num_germinated", ".1f"), "germinated"),
    Column("kept", _middle("num_fossilized", ".1f")),
    Column("sur-\nvived\n%", _middle("survival", ".0f", 100), "survived %"),
    *map(_share, OP_NAMES),
)
PREDICTED = (
    Column("val\nbits/byte", _middle("val_bits", ".3f")),
    Column(f"test\nbits/byte [{PERCENT}]", _spread("test_bits", ".3f")),
    Column(f"learned − it,\ntest [{PERCENT}]", _spread("bits_difference", "+.3f")),
    Column(f"it − never,\ntest [{PERCENT}]", _spread("bits_over_never", "+.3f")),
)
"""Columns of an evaluation: returns, final networks, actions, and bits per byte for text."""


def training_table(rows: Sequence[ResultRow], title: str) -> FoldingTable:
    """Make the table of controllers at the end of training, as mean ± standard error over hosts; with bits per byte for
    text.
    """
    hosts = _range(rows, "num_hosts")
    scores = BITS if any(row.val_bits for row in rows) else ACCURACIES
    columns = (Column("return", _spread("episode_return", "+.2f")), *scores, *GROWN)
    caption = f"mean ± standard error over {hosts} hosts; WAIT where there was a choice"
    return _table(rows, columns, title, caption, whole=True)


def compute_line(rows: Sequence[ResultRow]) -> str:
    """Name the training FLOPs of all controllers that were measured, for which the table has no room."""
    known = ", ".join(f"{row.name} {_flops(row)}" for row in rows if row.flops_ratio is not None)
    return f"training FLOPs over those of the host alone: {known}"


def verdict(rows: Sequence[ResultRow]) -> str | None:
    """Describe which controllers the learned one is above, which below, and which are too close to tell.

    Two standard errors of the difference, host by host, are clear. ``None``: nothing was compared.
    """
    found: dict[str, list[str]] = {"clearly above": [], "not clearly different from": [], "clearly below": []}
    for row in rows:
        difference = row.return_difference
        if isinstance(difference, Mean) and difference.sem is not None:
            apart = abs(difference.mean) > 2 * difference.sem
            side = "clearly above" if difference.mean > 0 else "clearly below"
            found[side if apart else "not clearly different from"].append(row.name)
    parts = [f"{word} {', '.join(names)}" for word, names in found.items() if names]
    return f"in return, learned is {'; '.join(parts)} (two standard errors; one run of training)" if parts else None


def evaluation_tables(rows: Sequence[ResultRow], title: str) -> Group:
    """Make the tables of an evaluation: returns, final networks and actions of controllers, and bits per byte for
    text.
    """
    text = any(row.test_bits for row in rows)
    counts = _counts(rows)
    tables = [
        _table(rows, EARNED, title),
        _table(rows, BECAME),
        _table(rows, DID, caption=f"ops: % of steps with a choice{'' if text else f'; {counts}'}"),
        *([_table(rows, PREDICTED, caption=f"bits per byte: lower is better; {counts}")] if text else []),
    ]
    return Group(tables[0], *(part for table in tables[1:] for part in ("", table)))


def _table(
    rows: Sequence[ResultRow],
    columns: Sequence[Column],
    title: str | None = None,
    caption: str | None = None,
    *,
    whole: bool = False,
) -> FoldingTable:
    """Make a table with a line for each row; ``whole`` cells are never broken."""
    table = FoldingTable(title, caption)
    table.add("controller", no_wrap=True)
    for column in columns:
        table.add(column.header, column.name, justify="right", no_wrap=whole, overflow="ellipsis" if whole else "fold")
    for row in rows:
        table.add_row(row.name, *(column.show(row) for column in columns))
    return table


def _range(rows: Sequence[ResultRow], field: str) -> str:
    """Format ``4``, or the smallest and the largest value."""
    found = sorted({getattr(row, field) for row in rows}) or [0]
    return "–".join(map(str, dict.fromkeys((found[0], found[-1]))))


def _counts(rows: Sequence[ResultRow]) -> str:
    """Describe the numbers of run seeds and hosts, and the variation that the intervals do not include."""
    text = f"run seeds: {_range(rows, 'num_runs')}; hosts: {_range(rows, 'num_hosts')}"
    if {row.num_runs for row in rows} == {1}:
        return f"{text}; with one run seed, what another run would give is not in the intervals"
    return text


MEASURES = frozenset(field.name for field in fields(ResultRow) if "Measure" in field.type or "Interval" in field.type)
OP_SHARE = "op_share"


def write_rows(rows: Sequence[ResultRow], path: Path) -> None:
    """Write one line per controller as CSV, numbers unrounded; an interval takes three columns, and every op has one.

    Values that were not measured are empty. Accuracies and shares are fractions of 1. Columns of text are omitted if no
    row has them. The folder is created.
    """
    names = evaluation_fields(rows)
    headings = [heading for name in names for heading in _headings(name)]
    write_csv(path, headings, ([cell for name in names for cell in _cells(row, name)] for row in rows))


def _headings(name: str) -> Sequence[str]:
    if name == OP_SHARE:
        return [f"{name}/{op}" for op in OP_NAMES]
    return [name, f"{name}_low", f"{name}_high"] if name in MEASURES else [name]


def _cells(row: ResultRow, name: str) -> Sequence[object]:
    value = getattr(row, name)
    if name == OP_SHARE:
        return [None if value is None else value[op] for op in OP_NAMES]
    if name not in MEASURES:
        return [value]
    return [None] * 3 if value is None else value[:3]
