"""``make test`` and ``make test-slow`` share the cases of a test: none is lost, and some of each are fast."""

from __future__ import annotations

import pytest

from tests.tiers import spread


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
