"""The table that ends a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.runtime.run_folder import RunFolder, RunState
from esper.views.sweep_table import JobRow, print_sweep


def test_says_of_every_job_how_far_it_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, state in (("failed", RunState.FAILED), ("stopped", RunState.PREEMPTED)):
        RunFolder.create(tmp_path / name, "").status(state, traceback="Traceback\nValueError: too small")
    names = ("failed", "stopped", "waiting")
    rows = [
        JobRow.read(RunFolder(tmp_path / name), number=number, label=f"seed={number}", note=None)
        for number, name in enumerate(names)
    ]
    print_sweep(tmp_path, rows)
    shown = capsys.readouterr().out
    table, notes = shown.split("job 0,")
    words = [line.split() for line in table.splitlines()]
    assert ["0", "seed=0", "failed", "–", "–", "-:--"] in words
    assert ["1", "seed=1", "interrupted", "–", "–", "-:--"] in words
    assert ["2", "seed=2", "not", "started", "–", "–", "-:--"] in words
    assert "ValueError: too small" in notes
