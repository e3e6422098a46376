"""A logger in the background receives everything in order, and costs the loop only the queueing."""

from __future__ import annotations

import threading

import pytest
from processes import LIMIT

from esper.runtime.records import Metrics
from esper.telemetry.background import InBackground
from esper.telemetry.events import Anomaly, Event
from esper.telemetry.hub import TelemetryHub

EVENT = Anomaly(iteration=1, name="non_finite", message="2 minibatches skipped", value=2.0)


class Slow:
    """Logger that blocks until released, and fails at the metrics of one iteration."""

    name = "slow"

    def __init__(self, fails_at: int | None = None) -> None:
        self.may_go_on = threading.Event()
        self.calls: list[object] = []
        self._fails_at = fails_at

    def _take(self, call: object) -> None:
        assert self.may_go_on.wait(LIMIT)
        self.calls.append(call)

    def event(self, event: Event) -> None:
        self._take(event)

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        if iteration == self._fails_at:
            raise OSError("network lost")
        self._take((iteration, metrics))

    def flush(self) -> None:
        self._take("flush")

    def stage(self, message: str, done: int, total: int) -> None:
        self._take((message, done, total))

    def close(self, status: str) -> None:
        self.calls.append(status)


def test_the_loop_goes_on_while_a_logger_hangs_and_nothing_is_lost_or_reordered() -> None:
    slow = Slow()
    hub = TelemetryHub([InBackground(slow)])
    metrics: dict[str, float | None] = {"a": 1.0}
    hub.stage("twins", 1, 2)
    hub.emit(EVENT)
    hub.log_metrics(1, metrics)  # would wait for ever if it waited
    hub.flush()
    metrics["a"] = 2.0  # the caller's from here on
    assert slow.calls == []
    slow.may_go_on.set()
    hub.close("finished")
    assert slow.calls == [("twins", 1, 2), EVENT, (1, {"a": 1.0}), "flush", "finished"]


def test_a_failure_in_the_background_is_reported_once_and_the_logger_is_closed_and_dropped() -> None:
    slow, warnings = Slow(fails_at=1), list[str]()
    slow.may_go_on.set()
    background = InBackground(slow)
    hub = TelemetryHub([background], warn=warnings.append)
    hub.log_metrics(1, {})
    background._thread.join(LIMIT)
    for iteration in (2, 3):
        hub.log_metrics(iteration, {})
    hub.close("finished")
    assert warnings == ["logger slow failed and is dropped (OSError: network lost)"]
    assert slow.calls == ["failed"]


def test_a_failure_at_the_very_end_is_reported_too() -> None:
    slow, warnings = Slow(fails_at=1), list[str]()
    hub = TelemetryHub([InBackground(slow)], warn=warnings.append)
    hub.emit(EVENT)
    hub.log_metrics(1, {})
    threading.Timer(0.05, slow.may_go_on.set).start()
    hub.close("finished")
    assert warnings == ["logger slow failed and is dropped (OSError: network lost)"]


def test_one_that_falls_too_far_behind_is_given_up() -> None:
    slow, warnings = Slow(), list[str]()
    hub = TelemetryHub([InBackground(slow, max_pending=3)], warn=warnings.append)
    for iteration in range(1, 9):
        hub.log_metrics(iteration, {})
    assert warnings == ["logger slow failed and is dropped (TimeoutError: more than 3 records behind)"]
    slow.may_go_on.set()


def test_one_that_hangs_at_the_end_is_reported_and_left() -> None:
    slow = Slow()
    background = InBackground(slow, close_seconds=0.05)
    background.event(EVENT)
    with pytest.raises(TimeoutError, match=r"not done 0\.05 s after the end"):
        background.close("finished")
    slow.may_go_on.set()


def test_a_logger_that_ends_its_thread_does_not_end_the_run() -> None:
    """Like a closed pipe in the drawing library, or ``sys.exit`` in a plugin."""

    class Ends(Slow):
        def metrics(self, iteration: int, metrics: Metrics) -> None:
            raise SystemExit(1)

    ending = Ends()
    ending.may_go_on.set()
    warnings: list[str] = []
    hub = TelemetryHub([InBackground(ending)], warn=warnings.append)
    hub.log_metrics(1, {})
    hub.close("finished")
    assert warnings == ["logger slow failed and is dropped (RuntimeError: it ended with SystemExit)"]
