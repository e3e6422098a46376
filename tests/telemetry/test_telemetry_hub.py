"""The hub keeps training safe from its loggers, and files say what was emitted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.runtime.records import Metrics, read_jsonl
from esper.telemetry.events import Event, GateEvaluated, LastAction, Level, StageChanged
from esper.telemetry.hub import TelemetryHub, optional
from esper.telemetry.jsonl import EventsJsonl, MetricsJsonl

CHANGED = StageChanged(
    environment=1, iteration=2, epoch=3, slot="r0c0", blueprint="norm", before="TRAINING", after="BLENDING"
)
GATE = GateEvaluated(
    environment=1, iteration=2, epoch=3, slot="r0c0", gate="G2", passed=False, reason="gradients not measured"
)
ACTION = LastAction(
    environment=1, iteration=2, epoch=3, op="WAIT", slot=None, blueprint=None, style=None, masked={}, success=True
)


class Recorder:
    """Keeps what it is given; raises where told to."""

    def __init__(self, name: str = "recorder", broken: str | None = None, error: type[BaseException] = OSError) -> None:
        self.name = name
        self.calls: list[object] = []
        self._broken = broken
        self._error = error

    def _take(self, method: str, value: object) -> None:
        if method == self._broken:
            raise self._error("disk full")
        self.calls.append(value)

    def event(self, event: Event) -> None:
        self._take("event", event)

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        self._take("metrics", (iteration, dict(metrics)))

    def flush(self) -> None:
        self._take("flush", None)

    def stage(self, message: str, done: int, total: int) -> None:
        self._take("stage", (message, done, total))

    def close(self, status: str) -> None:
        self._take("close", status)


@pytest.mark.parametrize(
    ("level", "kept"), [(Level.off, []), (Level.normal, [CHANGED]), (Level.debug, [CHANGED, ACTION])]
)
def test_the_level_decides_which_events_are_kept_and_metrics_always_are(level: Level, kept: list[Event]) -> None:
    recorder = Recorder()
    hub = TelemetryHub([recorder], level)
    hub.emit(CHANGED)
    hub.emit(ACTION)
    hub.log_metrics(1, {"a": 1.0})
    assert recorder.calls == [*kept, (1, {"a": 1.0})]
    assert hub.wants(LastAction) == (ACTION in kept)


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("event", lambda hub: hub.emit(CHANGED)),
        ("metrics", lambda hub: hub.log_metrics(1, {})),
        ("stage", lambda hub: hub.stage("twins", 1, 2)),
        ("close", lambda hub: hub.close("finished")),
    ],
)
def test_a_faulty_logger_is_reported_once_and_dropped_and_the_others_go_on(
    method: str, use: Callable[[TelemetryHub], None]
) -> None:
    first, faulty, last = Recorder(), Recorder("faulty", broken=method), Recorder()
    warnings: list[str] = []
    hub = TelemetryHub([first, faulty, last], warn=warnings.append)
    use(hub)
    use(hub)
    assert len(warnings) == 1
    assert "faulty" in warnings[0]
    assert "disk full" in warnings[0]
    assert first.calls == last.calls
    assert len(first.calls) == (1 if method == "close" else 2)
    assert faulty.calls == ([] if method == "close" else ["failed"])


@pytest.mark.parametrize("method", ["event", "metrics", "flush", "stage", "close"])
def test_without_its_own_record_a_run_does_not_go_on_but_every_logger_is_told(method: str) -> None:
    other, record = Recorder(), Recorder("record", broken=method)
    warnings: list[str] = []
    hub = TelemetryHub([other], record=[record], warn=warnings.append)
    calls: dict[str, Callable[[], None]] = {
        "event": lambda: hub.emit(CHANGED),
        "metrics": lambda: hub.log_metrics(1, {}),
        "flush": hub.flush,
        "stage": lambda: hub.stage("twins", 1, 2),
        "close": lambda: hub.close("finished"),
    }
    with pytest.raises(OSError, match="disk full"):
        calls[method]()
    assert (len(other.calls), warnings) == (1, [])


def test_a_record_that_cannot_be_closed_hides_no_other_error() -> None:
    with pytest.raises(ZeroDivisionError), TelemetryHub([], record=[Recorder("record", broken="close")]):
        raise ZeroDivisionError


def test_a_logger_that_cannot_be_made_is_reported_and_left_out() -> None:
    def make() -> Recorder:
        raise PermissionError("not yours")

    warnings: list[str] = []
    assert optional("plugin", make, warnings.append) == []
    assert warnings == ["logger plugin cannot be made and is left out (PermissionError: not yours)"]
    assert len(optional("plugin", Recorder, warnings.append)) == 1


def test_an_interrupt_in_a_logger_is_not_swallowed() -> None:
    hub = TelemetryHub([Recorder(broken="event", error=KeyboardInterrupt)])
    with pytest.raises(KeyboardInterrupt):
        hub.emit(CHANGED)


def test_the_default_warning_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    TelemetryHub([Recorder("faulty", broken="event")]).emit(CHANGED)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warning: logger faulty")


@pytest.mark.parametrize("value", [torch.tensor(1.0), "1.0", np.float32(1.0)])
def test_a_metric_that_is_no_plain_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="losses/policy_loss"):
        TelemetryHub([]).log_metrics(1, {"losses/policy_loss": value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("error", "status"), [(None, "finished"), (ValueError, "failed"), (KeyboardInterrupt, "preempted")]
)
def test_loggers_are_closed_with_the_state_in_which_the_block_ends(
    error: type[BaseException] | None, status: str
) -> None:
    recorder = Recorder()

    expected = contextlib.nullcontext() if error is None else pytest.raises(error)
    with expected, TelemetryHub([recorder]):
        if error is not None:
            raise error
    assert recorder.calls == [status]


def test_metrics_file_has_one_line_per_iteration_with_sorted_names_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    hub = TelemetryHub([MetricsJsonl(path)])
    hub.log_metrics(1, {"b": float("nan"), "a": 0.1, "c": None})
    assert path.read_text() == '{"iteration": 1, "a": 0.1, "b": null, "c": null}\n'  # written before the next one
    hub.log_metrics(2, {"c": 3, "a": 1 / 3, "b": float("inf")})
    hub.close("finished")
    first, second = read_jsonl(path)
    assert list(first) == list(second) == ["iteration", "a", "b", "c"]
    assert second == {"iteration": 2, "a": 1 / 3, "b": None, "c": 3}


def test_events_are_buffered_until_the_iteration_ends_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    hub = TelemetryHub([EventsJsonl(path)])
    hub.emit(CHANGED)
    assert path.read_text() == ""
    hub.log_metrics(1, {"a": 1.0})
    assert [record["kind"] for record in read_jsonl(path)] == ["stage_changed"]
    hub.emit(GATE)
    hub.close("failed")
    records = read_jsonl(path)
    assert [record["kind"] for record in records] == ["stage_changed", "gate_evaluated"]
    assert records[1]["reason"] == "gradients not measured"


def test_files_are_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for iteration in (1, 2):
        hub = TelemetryHub([MetricsJsonl(path)])
        hub.log_metrics(iteration, {})
        hub.close("finished")
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2]
