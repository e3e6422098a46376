"""Output of results: on the screen, as JSON, and as tables in a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.records import Record
from esper.runtime.files import write_atomic

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
COLUMNS = ("workload", "hosts", "implementation", "median", "p95", "ratio")
SPEED_COLUMNS = ("to same modules", "env-epochs/s", "samples/s")
"""Additional columns for sections that time an epoch of one host."""


def print_section(records: Sequence[Record], title: str, console: Console) -> None:
    """Print the records of one section as a table."""
    table = Table(title=title, title_justify="left")
    columns = _columns(records)
    for column in columns:
        table.add_column(column, justify="left" if column in ("workload", "implementation") else "right")
    before = None
    for record in records:
        if before is not None and (record.workload, record.hosts) != before:
            table.add_section()
        before = record.workload, record.hosts
        table.add_row(*map(escape, _cells(record)[: len(columns)]))  # a list of devices is not markup
    console.print(table)


def save(folder: Path, records: Sequence[Record], machine: dict[str, Any], titles: dict[str, str]) -> None:
    """Write ``results.json``, and update the tables in the folder's ``README.md`` if it has the markers.

    Sections without new records are kept, each with the machine and commit that measured it.
    """
    path, readme = folder / "results.json", folder / "README.md"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"machines": {}, "records": []}
    machines = kept["machines"] | {record.section: machine for record in records}
    everything = [Record(**row) for row in kept["records"] if machines[row["section"]] is not machine] + list(records)
    everything.sort(key=lambda record: list(titles).index(record.section))
    machines = {section: machines[section] for section in titles if section in machines}
    document = {"machines": machines, "records": [asdict(record) for record in everything]}
    write_atomic(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if BEGIN in text and END in text:
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        write_atomic(readme, f"{head}{BEGIN}\n{markdown(everything, machines, titles)}\n{END}{tail}")


def markdown(records: Sequence[Record], machines: dict[str, dict[str, Any]], titles: dict[str, str]) -> str:
    """Format one Markdown table per section, with the machine that measured it."""
    parts = []
    for section, group in groupby(records, key=lambda record: record.section):
        rows = list(group)
        columns = _columns(rows)
        lines = [
            f"### {titles[section]}",
            "",
            _machine_line(machines[section]),
            "",
            f"| {' | '.join(columns)} |",
            "|---|---:|---|" + "---:|" * (len(columns) - 3),
            *(f"| {' | '.join(_cells(record)[: len(columns)])} |" for record in rows),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _machine_line(machine: dict[str, Any]) -> str:
    changed = " with uncommitted changes" if machine["changed"] else ""
    commit = str(machine["commit"] or "unknown")[:12]
    return (
        f"{machine['cpu']}, {machine['threads']} thread of {machine['cores']} cores · torch {machine['torch']} · "
        f"Python {machine['python']} · commit {commit}{changed} · {machine['date']} · "
        f"{machine['clock']} time, load at the start {machine['load']}"
    )


def _columns(records: Sequence[Record]) -> tuple[str, ...]:
    return COLUMNS + SPEED_COLUMNS if any(record.samples for record in records) else COLUMNS


def _cells(record: Record) -> tuple[str, ...]:
    per_second = 1e3 / record.median if record.samples else 0.0
    return (
        record.workload,
        str(record.hosts),
        record.implementation,
        _number(record.median, record.unit),
        _number(record.p95, record.unit),
        _ratio(record.ratio),
        _ratio(record.ratio_grown),
        f"{per_second:.3g}" if record.samples else "",
        f"{per_second * record.samples:,.0f}" if record.samples else "",
    )


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value:,.0f} B"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
