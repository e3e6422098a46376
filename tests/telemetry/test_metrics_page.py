"""Every metric that a run logs is explained, and nothing is explained that no run logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import SMALL

from esper.config import compose
from esper.runtime.records import read_jsonl
from esper.telemetry.catalogue import METRICS, explain
from esper.telemetry.metrics_page import page
from esper.training.run import train

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the metrics of a real run."""
    run_dir = tmp_path_factory.mktemp("metrics") / "run"
    words = ("trainer.num_iterations=1", "evaluation.controllers=[never]", "telemetry.plots=false")
    train(compose(*SMALL, *words), run_dir)
    (record,) = read_jsonl(run_dir / "metrics.jsonl")
    return set(record) - {"iteration"}


def test_every_logged_metric_is_explained_once(logged: set[str]) -> None:
    entries = {key: [metric.name for metric in METRICS if metric.matches(key)] for key in logged}
    assert {key: names for key, names in entries.items() if len(names) != 1} == {}


def test_every_explained_metric_is_logged(logged: set[str]) -> None:
    assert [metric.name for metric in METRICS if not any(map(metric.matches, logged))] == []


def test_placeholders_stand_for_what_they_say_only() -> None:
    assert explain("losses/entropy/slot") is not None
    assert explain("losses/entropy/colour") is None
    assert explain("return_by_family/narrow_4+lr_over_3") is not None
    assert explain("charts/episodic_returns") is None


def test_the_page_in_docs_is_the_one_that_the_table_gives() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), "make docs"
    assert all(f"| `{metric.name}` | {metric.meaning} |" in page() for metric in METRICS)
