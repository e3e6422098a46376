"""The W&B workspace: what would be sent shows metrics that runs have, in the sections of the manual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import SMALL

from esper import dashboard
from esper.config import compose
from esper.growth.actions import HEADS, OP_NAMES
from esper.runtime.records import read_jsonl
from esper.telemetry.results import closing_numbers
from esper.training.run import train
from esper.views.workspace import FRONTIER, RESULT

# W&B's library is written for an older pydantic.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pytest.importorskip("wandb_workspaces", reason="needs pip install '.[dashboard]'")

SWEPT, IN_WANDB = ("ppo.ent_coef", "slots.num_slots"), ("ppo.value.ent_coef", "slots.value.num_slots")


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, Any]]]:
    """Panels that ``python -m esper.dashboard`` would send, by section."""
    monkeypatch.setattr("sys.argv", ["dashboard", "--entity", "me", "--project", "mine", "--by", *SWEPT, "--print"])
    dashboard.main()
    sent = json.loads(capsys.readouterr().out)
    assert (sent["entity"], sent["project"], sent["displayName"]) == ("me", "mine", "Esper")
    [runs] = sent["spec"]["section"]["runSets"]
    assert [group["name"] for group in runs["grouping"]] == list(IN_WANDB)
    found = sent["spec"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: [panel["config"] for panel in section["panels"]] for section in found}


def test_it_has_the_sections_of_the_manual(sections: dict[str, list[dict[str, Any]]]) -> None:
    assert {name: len(panels) for name, panels in sections.items()} == {
        "Learning curves": 4,
        "PPO health": 7,
        "Actions": 2,
        "Slots": 3,
        "Results": 2,
    }
    entropies, ops = (panel["metrics"] for panel in sections["Actions"])
    assert (len(entropies), len(ops)) == (len(HEADS), len(OP_NAMES))


@pytest.mark.slow
def test_every_panel_shows_something_that_a_run_sends(
    sections: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    train(compose(*SMALL, "evaluation.num_hosts=3", "evaluation.controllers=[learned]"), tmp_path)
    metrics = read_jsonl(tmp_path / "metrics.jsonl")[0].keys()
    plots = {f"plots/{path.stem}" for path in (tmp_path / "plots").iterdir()}
    numbers = closing_numbers(json.loads((tmp_path / "result.json").read_text())).keys()
    for panels in sections.values():
        for panel in panels:
            if panel.get("metrics"):
                assert panel["xAxis"] == "iteration"
                assert set(panel["metrics"]) <= metrics
            elif panel.get("mediaKeys"):
                assert set(panel["mediaKeys"]) <= plots
            elif panel.get("columns"):
                keys = [column["accessor"] for column in panel["columns"]]
                assert keys == [
                    *(f"config:{key}" for key in IN_WANDB),
                    *(f"summary:{key}" for key in (RESULT, *FRONTIER)),
                ]
            else:
                assert (panel["xAxis"], panel["yAxis"]) == tuple(f"summary:{key}" for key in FRONTIER)
    assert {RESULT, *FRONTIER} <= numbers


def test_saving_without_an_account_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ValueError("nobody is logged in")

    monkeypatch.setattr("sys.argv", ["dashboard", "--entity", "me"])
    monkeypatch.setattr("esper.telemetry.wandb_mirror.check_online", refuse)
    with pytest.raises(SystemExit) as end:
        dashboard.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: nobody is logged in\n"
