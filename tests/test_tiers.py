"""``make test`` and ``make test-slow`` share the cases of a test: none is lost, and some of each are fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.tiers import beyond_few, few, spread


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 24])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_cases_are_spread_from_the_first_to_the_last(number: int, total: int) -> None:
    chosen = sorted(spread(number, total))
    assert len(chosen) == min(number, total)
    assert set(chosen) <= set(range(total))
    if chosen:
        assert chosen[0] == 0
    if len(chosen) > 1:
        assert chosen[-1] == total - 1


@dataclass
class Case:
    """A collected test, of which only name and marks matter here."""

    nodeid: str
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark.mark for mark in self.marks if mark.name == name), None)


def test_what_make_test_does_not_take_is_left_to_make_test_slow() -> None:
    some = [Case(f"some[{number}]", (few(2),)) for number in range(5)]
    others = [
        Case(f"others[{number}]", (few(1), pytest.mark.slow) if number == 0 else (few(1),)) for number in range(3)
    ]
    cases: Any = [*some, *others, Case("one")]
    assert [case.nodeid for case in beyond_few(cases)] == ["some[1]", "some[2]", "some[3]", "others[2]"]
