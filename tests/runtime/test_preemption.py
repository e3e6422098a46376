"""Signals: raised at once or held back, with handlers restored afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import SMALL

from esper.config import compose
from esper.population import calibration
from esper.runtime.preemption import Preempted, StopSignals, Vote
from esper.runtime.ranks import ALONE
from esper.training.run import train

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_an_exit_with_a_code_of_its_own(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Preempted) as stopped, StopSignals():
        os.kill(os.getpid(), number)
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is before


def deferring(work: Callable[[StopSignals], None]) -> None:
    with StopSignals() as signals, signals.deferred():
        work(signals)


def test_inside_it_is_noted_and_raised_at_the_end() -> None:
    answers = []

    def work(signals: StopSignals) -> None:
        vote = Vote(ALONE, signals)
        answers.extend([vote.ask(), vote.settle()])
        os.kill(os.getpid(), signal.SIGTERM)
        answers.extend([vote.ask(), vote.settle()])

    with pytest.raises(Preempted):
        deferring(work)
    assert answers == [0, 0, signal.SIGTERM, signal.SIGTERM]


def test_a_second_one_is_not_held_back() -> None:
    def work(signals: StopSignals) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("went on")

    with pytest.raises(Preempted) as stopped:
        deferring(work)
    assert stopped.value.number == signal.SIGINT


def test_an_error_inside_is_the_error() -> None:
    def work(signals: StopSignals) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        deferring(work)


def test_other_threads_hear_nothing_and_do_not_mind() -> None:
    heard = []

    def work() -> None:
        with StopSignals() as signals, signals.deferred():
            heard.append(signals.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [0]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("mapping", ["auto", "matmul"])
def test_a_stop_while_mappings_are_tried_leaves_nothing(
    number: signal.Signals, mapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(calibration, "_chosen", {})
    monkeypatch.setattr(calibration, "_able", set())
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "why_not", stop)
    monkeypatch.setattr(calibration.choose_mapping, "__defaults__", (stop,))
    with pytest.raises(Preempted) as stopped:
        train(compose(*SMALL, f"env.mapping={mapping}"), tmp_path / "run")
    assert stopped.value.number == number
    assert list(tmp_path.iterdir()) == []
