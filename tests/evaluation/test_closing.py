"""Closing reports: a rival that kept nothing is named."""

from __future__ import annotations

from esper.evaluation.closing import idle_controls
from esper.telemetry.results import ResultRow


def test_rivals_that_kept_nothing_are_named_and_no_others() -> None:
    kept = {
        "learned": 0.0,
        "learned_sampled": 0.0,
        "never": 0.0,
        "heuristic": 0.0,
        "schedule_best": 0.02,
        "random": 0.0,
    }
    rows = [ResultRow(name=name, num_runs=1, num_hosts=2, num_fossilized=share) for name, share in kept.items()]
    assert idle_controls(rows) == ["heuristic", "random"]
