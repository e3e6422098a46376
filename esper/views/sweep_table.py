"""Closing table of a sweep: a line per job, read from its run folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Self

from rich.text import Text

from esper.runtime.controller_names import LEARNED
from esper.runtime.run_folder import RunCondition, RunFolder
from esper.runtime.terminal import console, say
from esper.telemetry.confidence import LEVEL, student
from esper.telemetry.results import closing_numbers
from esper.views.folding import FoldingTable
from esper.views.text import ABSENT, clock, number

MAX_NOTE = 160
NAMES = {RunCondition.EMPTY: "not started"}
COLOURS = {RunCondition.FINISHED: "green", RunCondition.FAILED: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Row of a sweep's table, for one job.

    Attributes:
        number: number of the job, from 0.
        label: swept values.
        configuration: swept values other than the run seed.
        folder: name of its folder.
        condition: condition of its run.
        episode_return, test_accuracy: results of the learned controller on held-out hosts; ``None`` before the end.
        wall_seconds: seconds of the run.
        note: reason why it is not finished.
    """

    number: int
    label: str
    configuration: str
    folder: str
    condition: RunCondition
    episode_return: float | None
    test_accuracy: float | None
    wall_seconds: float | None
    note: str

    @classmethod
    def read(cls, folder: RunFolder, *, number: int, label: str, configuration: str, note: str | None) -> Self:
        """Read the row of a run folder; ``note`` adds information from the sweep."""
        condition = folder.condition()
        finished = condition is RunCondition.FINISHED and folder.result.exists()
        result = json.loads(folder.result.read_text(encoding="utf-8")) if finished else {"controllers": []}
        numbers = closing_numbers(result)
        return cls(
            number=number,
            label=label,
            configuration=configuration,
            folder=folder.path.name,
            condition=condition,
            episode_return=numbers.get(f"closing/{LEARNED}/episode_return"),
            test_accuracy=numbers.get(f"closing/{LEARNED}/test_accuracy"),
            wall_seconds=result.get("wall_seconds"),
            note="" if finished else note or _last_words(folder),
        )


def _last_words(folder: RunFolder) -> str:
    """Return the last line of a failed run's traceback."""
    lines = folder.read_status().get("traceback", "").strip().splitlines()
    return lines[-1] if lines else ""


def print_sweep(sweep_dir: Path, rows: Sequence[JobRow]) -> None:
    """Print the table of a sweep, its failures, its configurations over run seeds, and the command for a report."""
    table = FoldingTable(f"sweep {sweep_dir}")
    table.add("job", justify="right")
    table.add("what", overflow="fold")
    table.add("state", no_wrap=True)
    for header in ("return", "test %", "time"):
        table.add(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.number),
            Text(row.label),
            Text(NAMES.get(row.condition, row.condition), style=COLOURS.get(row.condition, "yellow")),
            number(row.episode_return, "+.2f"),
            number(row.test_accuracy, ".1f", 100),
            clock(row.wall_seconds),
        )
    console().print(table)
    for row in rows:
        if row.condition is not RunCondition.FINISHED:
            note = f": {row.note[:MAX_NOTE]}" if row.note else ""
            say(f"job {row.number}, {row.folder}{note}")
    configurations: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.condition is RunCondition.FINISHED:
            configurations.setdefault(row.configuration, []).append(row)
    if any(len(alike) > 1 for alike in configurations.values()):
        console().print(_over_seeds(configurations))
    if configurations:
        say(f"python -m esper.report {shlex.quote(str(sweep_dir))} writes tables, plots and one page of it")


def _over_seeds(configurations: Mapping[str, Sequence[JobRow]]) -> FoldingTable:
    """Make a table with the mean of each configuration over its finished run seeds, and its interval from two on."""
    table = FoldingTable(f"mean over run seeds ± {100 * LEVEL:g} % interval")
    table.add("configuration", overflow="fold")
    for header in ("runs", "return", "test %"):
        table.add(header, justify="right", no_wrap=True)
    for name, alike in configurations.items():
        returns, accuracies = [row.episode_return for row in alike], [row.test_accuracy for row in alike]
        table.add_row(
            Text(name or "all"), str(len(alike)), _spread(returns, "+.2f", 1), _spread(accuracies, ".1f", 100)
        )
    return table


def _spread(values: Sequence[float | None], spec: str, scale: float) -> str:
    known = [scale * value for value in values if value is not None]
    if not known:
        return ABSENT
    half = f" ± {number(student(known), spec.lstrip('+'))}" if len(known) > 1 else ""
    return number(fmean(known), spec) + half
