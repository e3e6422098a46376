"""The closing table of a sweep: a line per job, from what its run folder says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.text import Text

from esper.runtime.run_folder import RunCondition, RunFolder
from esper.runtime.terminal import console, say
from esper.telemetry.closing_tables import closing_numbers
from esper.views.folding import FoldingTable
from esper.views.text import clock, number

MAX_NOTE = 160
NAMES = {RunCondition.EMPTY: "not started"}
COLOURS = {RunCondition.FINISHED: "green", RunCondition.FAILED: "red"}
LEARNED = "closing/learned/"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job of a sweep.

    Attributes:
        number: from 0.
        label: values that are swept.
        folder: name of its folder.
        condition: how its run stands.
        episode_return, test_accuracy: of the learned controller on held-out hosts; ``None`` before the end.
        wall_seconds: of the run.
        note: why it is not finished.
    """

    number: int
    label: str
    folder: str
    condition: RunCondition
    episode_return: float | None
    test_accuracy: float | None
    wall_seconds: float | None
    note: str

    @classmethod
    def read(cls, folder: RunFolder, *, number: int, label: str, note: str | None) -> Self:
        """The row of a run folder; ``note`` is what others know about the job."""
        condition = folder.condition()
        finished = condition is RunCondition.FINISHED and folder.result.exists()
        result = json.loads(folder.result.read_text(encoding="utf-8")) if finished else {"controllers": []}
        numbers = closing_numbers(result)
        return cls(
            number=number,
            label=label,
            folder=folder.path.name,
            condition=condition,
            episode_return=numbers.get(f"{LEARNED}episode_return"),
            test_accuracy=numbers.get(f"{LEARNED}test_accuracy"),
            wall_seconds=result.get("wall_seconds"),
            note="" if finished else note or _last_words(folder),
        )


def _last_words(folder: RunFolder) -> str:
    """The last line of a failed run's traceback."""
    if not folder.status_file.exists():
        return ""
    lines = json.loads(folder.status_file.read_text(encoding="utf-8")).get("traceback", "").strip().splitlines()
    return lines[-1] if lines else ""


def print_sweep(sweep_dir: Path, rows: Sequence[JobRow]) -> None:
    """Print the table of a sweep, and below it what went wrong."""
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
