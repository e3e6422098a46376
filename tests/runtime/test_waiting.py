"""Time before a run begins counts once, for the first run of a process."""

from __future__ import annotations

from esper.runtime import waiting


def test_the_first_run_counts_what_came_before_it_in_both_processes() -> None:
    waiting.begin()
    waiting.begin(earlier=100.0)
    assert 100.0 < waiting.waited() < 160.0
    assert waiting.waited() == 0.0, "a later run of the process begins when it is called"
