"""Controllers of plugins in an evaluation: those of the run's plugins and of its own, tunable ones too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import SMALL

from esper.config import compose, plugins, to_plain
from esper.config.evaluate import EvaluateConfig
from esper.config.plugins import activate
from esper.controllers import tunables
from esper.evaluation.run import check, evaluate
from esper.experiment.build import build_experiment
from esper.experiment.checkpoint import save_checkpoint
from esper.runtime.terminal import ConsoleMode

WAITING = """
from dataclasses import dataclass
from esper.controllers import register_controller, rule
from esper.controllers.base import germinate, waiting

@dataclass(frozen=True, kw_only=True)
class Parameters:
    slot: int = 0

class Grows:
    name = "own_rule"

    def __init__(self, rows, space):
        self.rows = rows

    def reset(self, which):
        pass

    def act(self, view):
        actions = waiting(view.state.num_envs)
        for env, each in enumerate(self.rows):
            if view.history.epoch[env] == 0 and view.observation.masks.slot[env, 1, each.slot]:
                fits = view.observation.masks.blueprint[env, each.slot].nonzero()
                actions[env] = germinate(each.slot, int(fits[0]))
        return actions

register_controller("own_rule", rule(Parameters, lambda space: {"slot": range(space.num_slots)}, Grows))
"""

LATER = """
from esper.controllers import Never, register_controller

class Later(Never):
    name = "later"

register_controller("later", lambda context: Later())
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkpoint of a run with a plugin, and another plugin that was written after it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_seen", {})
    (tmp_path / "own_rule_plugin.py").write_text(WAITING)
    (tmp_path / "later_plugin.py").write_text(LATER)
    words = ("plugins=[own_rule_plugin]", "env.num_epochs=8", "instances.num_train=2", "slots.blueprints=[norm]")
    experiment = build_experiment(compose(*SMALL, *words))
    policy, normaliser = experiment.policy()
    plain = to_plain(experiment.config)
    save_checkpoint(tmp_path / "last.pt", policy=policy, normaliser=normaliser, iteration=3, config=plain)
    activate([])
    yield tmp_path / "last.pt"
    activate([])


@pytest.mark.slow
def test_controllers_of_the_runs_plugins_and_of_ones_own_stand_in_the_table(run: Path, tmp_path: Path) -> None:
    config = EvaluateConfig(
        checkpoint=str(run),
        plugins=["later_plugin"],
        controllers=["never", "own_rule", "later"],
        num_hosts=2,
        tuning_epochs=24,
        draws=200,
        console=ConsoleMode.off,
    )
    check(config)
    activate(config.plugins)  # as when a process of a rank has loaded the configuration
    evaluate(config, tmp_path / "evaluation")
    result = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    assert [row["name"] for row in result["controllers"]] == ["never", "own_rule", "later"]
    tuning = json.loads((tmp_path / "evaluation" / "tuning.json").read_text())
    assert tuning["own_rule"]["slot"] in (0, 1, 2)
    assert tuning["spent"] == {"own_rule": 24}
    assert "own_rule" in tunables()
    again = EvaluateConfig(
        checkpoint=str(run), tuning=str(tmp_path / "evaluation" / "tuning.json"), controllers=["own_rule"], num_hosts=2
    )
    check(again)


def test_an_unknown_controller_is_met_with_those_of_the_runs_plugins(run: Path) -> None:
    config = EvaluateConfig(checkpoint=str(run), controllers=["own_rul"], num_hosts=2)
    with pytest.raises(
        ValueError, match=r"controllers: unknown 'own_rul' \(did you mean 'own_rule'\?\); choose from .*, own_rule$"
    ):
        check(config)
