"""Loggers that a configuration adds: the table of metrics, and names that there are not."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from esper.config import UsageError, compose
from esper.experiment.preflight import preflight
from esper.telemetry.loggers import LoggedRun, MetricsCsv, TensorBoard, register_logger


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_a_row_per_iteration_and_a_column_per_metric_also_for_one_that_comes_later(
    tmp_path: Path,
) -> None:
    logger = MetricsCsv(LoggedRun(folder=tmp_path, config={}))
    assert table(tmp_path) == []
    logger.metrics(1, {"b": 0.1, "a": None})
    logger.metrics(2, {"b": float("nan"), "a": 2})
    assert table(tmp_path) == [{"iteration": "1", "a": "", "b": "0.1"}, {"iteration": "2", "a": "2", "b": ""}]
    logger.metrics(3, {"b": 1e-7, "c": 3.5})
    assert table(tmp_path)[1:] == [
        {"iteration": "2", "a": "2", "b": "", "c": ""},
        {"iteration": "3", "a": "", "b": "1e-07", "c": "3.5"},
    ]


def test_a_resumed_run_begins_with_the_table_of_its_record(tmp_path: Path) -> None:
    """A killed process may have left a row more, and half of another."""
    (tmp_path / "metrics.csv").write_text("iteration,a\r\n1,5\r\n2,6\r\n3,")
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "a": 5}) + "\n")
    logger = MetricsCsv(LoggedRun(folder=tmp_path, config={}, iteration=1))
    logger.metrics(2, {"a": 7})
    assert table(tmp_path) == [{"iteration": "1", "a": "5"}, {"iteration": "2", "a": "7"}]


def test_tensorboard_reads_what_was_logged_and_a_resumed_run_replaces_what_a_killed_one_wrote_last(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard", reason="needs pip install '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run, values in ((0, {1: 0.5, 2: float("nan"), 3: 9.0}), (2, {3: 1.5, 4: None})):
        logger = TensorBoard(LoggedRun(folder=tmp_path, config={}, iteration=run))
        for iteration, value in values.items():
            logger.metrics(iteration, {"charts/x": value})
        logger.close("finished")
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("charts/x")] == [(1, 0.5), (3, 1.5)]


def test_the_name_of_the_mirror_is_taken() -> None:
    with pytest.raises(ValueError, match=r"^there is a logger 'wandb' already, .*: choose another name$"):
        register_logger("wandb", MetricsCsv)


def test_an_unknown_logger_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ValueError,
        match=r"^telemetry\.loggers: unknown 'cvs' \(did .*\); choose from csv, tensorboard, wandb; "
        r"metrics\.jsonl is always written$",
    ):
        preflight(compose("+preset=smoke", "telemetry.loggers=[cvs]"))
    with pytest.raises(UsageError, match=r"telemetry\.loggers names csv more than once"):
        compose("telemetry.loggers=[csv,csv]")
