"""The table that ends a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.runtime.run_folder import RunCondition, RunFolder, RunState
from esper.views.sweep_table import JobRow, print_sweep


def finished(number: int, configuration: str, episode_return: float) -> JobRow:
    """Row of a job that has finished with a test accuracy of 50 %."""
    return JobRow(
        number=number,
        label=f"{configuration} seed={number}",
        configuration=configuration,
        folder=str(number),
        condition=RunCondition.FINISHED,
        episode_return=episode_return,
        test_accuracy=0.5,
        wall_seconds=60.0,
        note="",
    )


def test_configurations_have_means_and_students_intervals_over_their_run_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_sweep(tmp_path / "a b", [finished(0, "lr=1", 1.0), finished(1, "lr=1", 2.0), finished(2, "lr=2", -1.0)])
    shown = capsys.readouterr().out
    words = [line.split() for line in shown.splitlines()]
    assert ["lr=1", "2", "+1.50", "±", "6.35", "50.0", "±", "0.0"] in words, "12.706 x 0.707 / sqrt(2)"
    assert ["lr=2", "1", "-1.00", "50.0"] in words
    assert f"python -m esper.report '{tmp_path / 'a b'}' writes" in shown


def test_a_run_of_each_configuration_has_no_second_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(tmp_path, [finished(0, "lr=1", 1.0), finished(1, "lr=2", 2.0)])
    assert "interval" not in capsys.readouterr().out


def test_says_of_every_job_how_far_it_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, state in (("failed", RunState.FAILED), ("stopped", RunState.PREEMPTED)):
        RunFolder.create(tmp_path / name, "").status(state, traceback="Traceback\nValueError: too small")
    names = ("failed", "stopped", "waiting")
    rows = [
        JobRow.read(RunFolder(tmp_path / name), number=number, label=f"seed={number}", configuration="", note=None)
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
