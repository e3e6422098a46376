"""The rank named when a run ends is the one that failed, however long it takes to end, not one that lost it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from esper.config import UsageError
from esper.launch import rank
from esper.launch import spawn as launch
from esper.launch.spawn import CAUSE_SECONDS, GRACE_SECONDS, PEER_LOST, _causes, _watch

NEVER = float("inf")


class Clock:
    """A clock that advances only while sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(launch, "time", made)
    return made


def watched(clock: Clock, *ends: tuple[float, int]) -> list[int | None]:
    """Return the exit codes known after a run whose ranks end at these times with these codes."""
    children: list[Any] = [
        SimpleNamespace(poll=lambda at=at, code=code: code if clock.now >= at else None) for at, code in ends
    ]
    return _watch(children, SimpleNamespace(requested=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.0, 1.0, 5.0, 0.9 * CAUSE_SECONDS])
def test_a_rank_that_takes_its_time_to_end_is_still_the_cause(clock: Clock, seconds: float) -> None:
    codes = watched(clock, (1.0, PEER_LOST), (1.0 + seconds, 1))
    assert codes == [PEER_LOST, 1]
    assert _causes(codes) == [1]


def test_nobody_waits_for_the_others_once_the_cause_is_known(clock: Clock) -> None:
    assert watched(clock, (NEVER, 0), (1.0, -9), (NEVER, 0)) == [None, -9, None]
    assert clock.now < 1.0 + GRACE_SECONDS + 1


def test_a_cause_that_hangs_is_not_awaited_for_ever(clock: Clock) -> None:
    assert watched(clock, (1.0, PEER_LOST), (NEVER, 1)) == [PEER_LOST, None]
    assert clock.now < 1.0 + CAUSE_SECONDS + GRACE_SECONDS + 1


def test_all_good_ends_are_awaited(clock: Clock) -> None:
    assert watched(clock, (10.0, 0), (9_000.0, 0)) == [0, 0]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CUDA error: an illegal access\nIt may be reported late."), "CUDA error: an illegal access"),
        (RuntimeError("\n  first\nsecond"), "first"),
        (RuntimeError(""), "RuntimeError: no more is said"),
        (KeyError("stem"), "KeyError: 'stem'"),
        (SystemExit(3), "it asks to exit with code 3"),
        (UsageError("seed: must be 0 or more"), "seed: must be 0 or more"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_rank_failed_of_is_told_so_that_it_says_something(
    error: BaseException, told: str, tmp_path: Path
) -> None:
    rank._record(tmp_path / "failure.json", error)
    assert json.loads((tmp_path / "failure.json").read_text())["message"] == told
