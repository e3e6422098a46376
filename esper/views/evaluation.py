"""Controllers side by side over run seeds and held-out hosts: tables for the terminal, and the same rows as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Group

from esper.growth.actions import OP_NAMES
from esper.runtime.files import replacing
from esper.telemetry.statistics import Interval
from esper.views.folding import FoldingTable
from esper.views.text import ABSENT, number

PARTS = ("", "_low", "_high")
"""Endings of the three CSV columns of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """One controller over the held-out hosts. ``None`` where a number was not measured.

    Intervals are those of :func:`esper.telemetry.statistics.crossed_bootstrap` over run seeds and instances, all at one
    level.

    Attributes:
        name: the controller.
        num_runs: run seeds of the learner behind the numbers; 1 for a controller that has none.
        num_hosts: instances behind the numbers, the same for all run seeds.
        episode_return: mean undiscounted return, in points.
        return_iqm: its interquartile mean.
        return_difference: mean return of the learned controller minus this one's, paired by run seed and instance.
        improvement: probability that the learned controller's return is above this one's.
        val_accuracy, test_accuracy: mean accuracy of the final networks, as a fraction of 1.
        test_difference: test accuracy of the learned controller minus this one's, paired, as a fraction of 1.
        added_parameters: mean over hosts, of the modules kept.
        flops_ratio: mean multiply-adds of training a host and its modules, over those of the host alone.
        wall_seconds: wall-clock time of all episodes of one run seed.
        num_fossilized: mean number of modules kept.
        num_germinated: mean number of modules ever put into a host.
        survival: modules kept, as a share of those germinated; ``None`` if none was.
        op_share: share of each op among steps with a choice, by name in the order of ops, as a fraction of 1.
        val_bits, test_bits: of text, mean loss of the final networks in bits per byte: lower is better.
        bits_difference: test bits of the learned controller minus this one's, paired.
        bits_over_never: test bits of this controller minus those of never-grow, paired.
    """

    name: str
    num_runs: int
    num_hosts: int
    episode_return: Interval | None = None
    return_iqm: Interval | None = None
    return_difference: Interval | None = None
    improvement: Interval | None = None
    val_accuracy: Interval | None = None
    test_accuracy: Interval | None = None
    test_difference: Interval | None = None
    added_parameters: Interval | None = None
    flops_ratio: float | None = None
    wall_seconds: float | None = None
    num_fossilized: float | None = None
    num_germinated: float | None = None
    survival: float | None = None
    op_share: Mapping[str, float] | None = None
    val_bits: Interval | None = None
    test_bits: Interval | None = None
    bits_difference: Interval | None = None
    bits_over_never: Interval | None = None


INTERVALS = frozenset(field.name for field in fields(EvaluationRow) if "Interval" in str(field.type))
OP_SHARE = "op_share"
OP_HEADERS = {"GERMINATE": "GERMI\nNATE", "SET_ALPHA_TARGET": "SET_\nALPHA", "FOSSILIZE": "FOSSI\nLIZE"}
"""Where long names of ops break, or end."""
OF_TEXT = ("val_bits", "test_bits", "bits_difference", "bits_over_never")
"""Fields that only text has."""


def with_interval(interval: Interval | None, spec: str, scale: float = 1.0) -> str:
    """``estimate [low,high]``, or a dash; a narrow column breaks between the two."""
    if interval is None:
        return ABSENT
    estimate, low, high = (f"{value * scale:{spec}}" for value in interval[:3])
    return f"{estimate} [{low},{high}]"


def evaluation_tables(rows: Sequence[EvaluationRow], title: str, level: float = 0.95) -> Group:
    """Tables beneath each other: what controllers earned, what their hosts became and what was done; of text its bits.

    Args:
        rows: controllers, in the order shown.
        title: above the first table.
        level: of the intervals.
    """
    text = any(row.test_bits for row in rows)
    earned, became = _table(title), _table(None)
    percent = f"{100 * level:g} %"
    for header in (f"return [{percent}]", "IQM", f"learned − it [{percent}]", "P(learned\nabove it)"):
        earned.add(header, justify="right", overflow="fold")
    headers = ("val\n%", "test\n%", f"learned − it,\ntest % [{percent}]", "added\nparams", "FLOPs\nratio", "wall\ns")
    for header in headers:
        became.add(header, justify="right", overflow="fold")
    for row in rows:
        earned.add_row(
            row.name,
            with_interval(row.episode_return, "+z.2f"),
            _estimate(row.return_iqm, "+z.2f"),
            with_interval(row.return_difference, "+z.2f"),
            _estimate(row.improvement, ".2f"),
        )
        became.add_row(
            row.name,
            _estimate(row.val_accuracy, ".1f", 100),
            _estimate(row.test_accuracy, ".1f", 100),
            with_interval(row.test_difference, "+z.1f", 100),
            _estimate(row.added_parameters, ",.0f"),
            number(row.flops_ratio, ".2f"),
            number(row.wall_seconds, ",.0f"),
        )
    did = _actions_table(rows, "" if text else f"; {_caption(rows)}")
    return Group(earned, "", became, "", did, *(("", _bits_table(rows, percent)) if text else ()))


def _actions_table(rows: Sequence[EvaluationRow], caption: str) -> FoldingTable:
    table = _table(None, f"ops: % of steps with a choice{caption}")
    counts = {"germi\nnated": "germinated", "kept": "kept", "sur-\nvived\n%": "survived %"}
    for header, name in (counts | {OP_HEADERS.get(name, name): f"{name} %" for name in OP_NAMES}).items():
        table.add(header, name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row.name,
            number(row.num_germinated, ".1f"),
            number(row.num_fossilized, ".1f"),
            number(row.survival, ".0f", 100),
            *(number(None if row.op_share is None else row.op_share[name], ".0f", 100) for name in OP_NAMES),
        )
    return table


def _bits_table(rows: Sequence[EvaluationRow], percent: str) -> FoldingTable:
    table = _table(None, f"bits per byte: lower is better; {_caption(rows)}")
    headers = ("val\nbits/byte", f"test\nbits/byte [{percent}]", f"learned − it,\ntest [{percent}]")
    for header in (*headers, f"it − never,\ntest [{percent}]"):
        table.add(header, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row.name,
            _estimate(row.val_bits, ".3f"),
            with_interval(row.test_bits, ".3f"),
            with_interval(row.bits_difference, "+z.3f"),
            with_interval(row.bits_over_never, "+z.3f"),
        )
    return table


def write_csv(rows: Sequence[EvaluationRow], path: Path) -> None:
    """One line per controller, numbers unrounded; an interval takes three columns, and every op has one.

    What was not measured is empty. Accuracies and shares are fractions of 1. Columns of text are left out where no row
    has them. The folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        text = any(row.test_bits for row in rows)
        names = [field.name for field in fields(EvaluationRow) if text or field.name not in OF_TEXT]
        writer.writerow([heading for name in names for heading in _headings(name)])
        for row in rows:
            writer.writerow([cell for name in names for cell in _cells(row, name)])


def _headings(name: str) -> Sequence[str]:
    if name == OP_SHARE:
        return [f"{name}/{op}" for op in OP_NAMES]
    return [name + part for part in PARTS] if name in INTERVALS else [name]


def _cells(row: EvaluationRow, name: str) -> Sequence[object]:
    value = getattr(row, name)
    if name == OP_SHARE:
        return [None if value is None else value[op] for op in OP_NAMES]
    if name not in INTERVALS:
        return [value]
    return [None] * len(PARTS) if value is None else value[: len(PARTS)]


def _table(title: str | None, caption: str | None = None) -> FoldingTable:
    table = FoldingTable(title, caption)
    table.add("controller", no_wrap=True)
    return table


def _caption(rows: Sequence[EvaluationRow]) -> str:
    """How many run seeds and hosts, and what the intervals leave out."""
    runs, hosts = (sorted({getattr(row, name) for row in rows}) for name in ("num_runs", "num_hosts"))
    text = f"run seeds: {'–'.join(map(str, runs)) or 0}; held-out hosts: {'–'.join(map(str, hosts)) or 0}"
    if runs == [1]:
        return f"{text}; with one run seed, what another run would give is not in the intervals"
    return text


def _estimate(interval: Interval | None, spec: str, scale: float = 1.0) -> str:
    return number(None if interval is None else interval.estimate, spec, scale)
