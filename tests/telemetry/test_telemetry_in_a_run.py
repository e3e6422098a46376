"""Telemetry in a real run: it records more after an anomaly, and its failures stop nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import SMALL

from esper.config import compose
from esper.runtime.records import read_jsonl
from esper.telemetry import escalation
from esper.telemetry.events import Anomaly
from esper.training.run import train
from esper.views.console import ConsoleLogger
from tests.tiers import few


@pytest.mark.slow
def test_an_anomaly_has_the_next_iterations_kept_at_debug_and_a_broken_logger_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def detect(iteration: int, *_: object) -> list[Anomaly]:
        found = Anomaly(iteration=iteration, name="accuracy_drop", message="fell", value=0.2)
        return [found] if iteration == 1 else []

    def broken(*_: object) -> None:
        raise OSError("terminal gone")

    monkeypatch.setattr(escalation, "detect", detect)
    monkeypatch.setattr(ConsoleLogger, "metrics", broken)
    words = (
        "evaluation.controllers=[never]",
        "telemetry.plots=false",
        "trainer.num_iterations=3",
        "telemetry.escalation_iterations=1",
        "telemetry.level=normal",
    )
    train(compose(*SMALL, *words), tmp_path / "run")
    events = read_jsonl(tmp_path / "run" / "events.jsonl")
    assert {event["iteration"] for event in events if event["kind"] == "last_action"} == {2}
    changes = [(event["iteration"], event["now"]) for event in events if event["kind"] == "level_changed"]
    assert changes == [(1, "debug"), (2, "normal")]
    assert len(read_jsonl(tmp_path / "run" / "metrics.jsonl")) == 3
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"
    assert capsys.readouterr().err.count("logger console failed and is dropped (OSError: terminal gone)") == 1


@pytest.mark.parametrize("part", ["__init__", "close"])
@few(1)
def test_whatever_a_terminal_does_a_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    def broken(*_: object) -> None:
        raise OSError("terminal gone")

    monkeypatch.setattr(ConsoleLogger, part, broken)
    words = ("evaluation.controllers=[never]", "telemetry.plots=false", "trainer.num_iterations=1")
    train(compose(*SMALL, *words), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"
    assert capsys.readouterr().err.count("OSError: terminal gone") == 1
