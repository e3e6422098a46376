"""``docs/metrics.md`` explains every metric that a run logs and nothing else, in the numbers that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import SMALL

from esper.algorithms.diagnostics import RATIO_HIGH, RATIO_LOW
from esper.config import compose
from esper.growth import STAGE_NAMES
from esper.growth.actions import HEADS, OP_NAMES
from esper.runtime.records import read_jsonl
from esper.telemetry.anomalies import AnomalyLimits
from esper.training.run import train

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
METRICS, ANOMALIES = (
    {
        row[0]: row[1:]
        for row in (re.split(r" (?<!\\)\| ", line.strip("| ")) for line in part.splitlines())
        if len(row) > 1
    }
    for part in PAGE.replace("|---", "").split("## Anomalies")
)
PLACEHOLDERS = {"op": OP_NAMES, "head": HEADS, "stage": STAGE_NAMES[1:]}


def explaining(key: str) -> list[str]:
    """Rows of the page that are about a logged name."""
    found = []
    for row in METRICS:
        pattern = re.escape(row.strip("`")).replace("<family>", ".+").replace("<rent>", r"[\d.]+")
        for placeholder, values in PLACEHOLDERS.items():
            pattern = pattern.replace(f"<{placeholder}>", f"(?:{'|'.join(values)})")
        if re.fullmatch(pattern, key):
            found.append(row)
    return found


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the metrics of a real run."""
    run_dir = tmp_path_factory.mktemp("metrics") / "run"
    words = ("trainer.num_iterations=2", "evaluation.controllers=[never]", "telemetry.plots=false")
    words += ("reward.rent_weights=[0.5,2]", "reward.compute_weight=1", "imitation.controller=schedule")
    train(compose(*SMALL, *words), run_dir)
    return set().union(*read_jsonl(run_dir / "metrics.jsonl")) - {"iteration"}


def test_every_logged_metric_is_explained_once(logged: set[str]) -> None:
    assert {key: rows for key in logged if len(rows := explaining(key)) != 1} == {}


def test_every_explained_metric_is_logged(logged: set[str]) -> None:
    assert set(METRICS) - {row for key in logged for row in explaining(key)} == {"name"}


def test_every_metric_has_meaning_formula_unit_and_what_is_healthy() -> None:
    assert len(METRICS) > 40
    assert {row: cells for row, cells in METRICS.items() if len(cells) != 4 or not all(cells)} == {}


def test_placeholders_stand_for_what_they_say_only() -> None:
    for placeholder, values in PLACEHOLDERS.items():
        assert f"- `<{placeholder}>` is one of {', '.join(values)}\n" in PAGE
    assert explaining("losses/entropy/slot") == ["`losses/entropy/<head>`"]
    assert explaining("losses/entropy/colour") == []
    assert explaining("return_by_family/narrow_4+lr_over_3") == ["`return_by_family/<family>`"]
    assert explaining("charts/episodic_returns") == []


def test_anomalies_are_explained_with_their_limits() -> None:
    limits = AnomalyLimits()
    assert {row.strip("`"): re.findall(r"-?\d[\d.]*", when) for row, (when, _) in ANOMALIES.items()} == {
        "anomaly": [],
        "non_finite": [],
        "ratio_explosion": [f"{limits.max_ratio_outside:g}", f"{RATIO_HIGH:g}", f"{RATIO_LOW:g}"],
        "entropy_collapse": [f"{limits.min_entropy:g}"],
        "value_collapse": [f"{limits.min_explained_variance:g}", f"{limits.value_start}"],
        "gradient_norm": [f"{limits.max_gradient_norm:g}"],
        "accuracy_drop": [f"{limits.max_accuracy_drop:g}", f"{limits.accuracy_window}"],
    }
