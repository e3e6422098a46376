"""A user's own blueprint is one like any other: whatever names, counts, draws or compares blueprints knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import SMALL, Eager, controller, play_episode, small_env, undone
from torch import nn

from esper.blueprints import blueprint_ids, register_blueprint
from esper.blueprints.residual import Residual, conv_norm
from esper.config import compose
from esper.config.evaluate import EvaluateConfig
from esper.controllers import CONTROLLERS
from esper.evaluation.run import check, evaluate
from esper.experiment.build import Experiment, build_experiment
from esper.growth.actions import Op, describe
from esper.report.cli import main as report
from esper.runtime.records import read_jsonl
from esper.runtime.terminal import ConsoleMode
from esper.training.rollout import _stages_of
from esper.training.run import train
from tests.tiers import few

OWN = "somebody.wide"


def build_wide(channels: int) -> nn.Module:
    return Residual(channels, nn.Sequential(*conv_norm(channels, channels, 5), nn.ReLU()))


@pytest.fixture(scope="module")
def own_blueprint() -> Iterator[int]:
    """The only one that may germinate, behind all built-in ones."""
    with undone():
        register_blueprint("cnn", OWN, build_wide)
        yield blueprint_ids().index(OWN)


WORDS = (*SMALL, f"slots.blueprints=[{OWN}]", "env.num_epochs=8", "instances.num_train=7", "evaluation.num_hosts=3")


@pytest.fixture(scope="module")
def experiment(own_blueprint: int) -> Experiment:
    return build_experiment(compose(*WORDS))


def test_reports_name_a_users_blueprint(experiment: Experiment, own_blueprint: int) -> None:
    env = small_env(experiment)
    play_episode(env, Eager())
    assert (env.state.blueprint == own_blueprint).any()
    named = [[report.blueprint for report in env.reports(row).values()] for row in range(env.num_envs)]
    assert named == [[OWN if index >= 0 else None for index in row] for row in env.state.blueprint.tolist()]


def test_an_error_is_worded_where_a_users_blueprint_grows(experiment: Experiment) -> None:
    env = small_env(experiment)
    play_episode(env, Eager())
    assert all("r0c0 " in _stages_of(env)(row) for row in range(env.num_envs))


def test_an_action_in_words_names_a_users_blueprint(own_blueprint: int) -> None:
    row = [int(Op.GERMINATE), 0, own_blueprint, 0, 0, 0, 0, 0]
    assert describe(row, 0.0, ["r0c0"], blueprint_ids()).blueprint == OWN


@pytest.mark.parametrize("name", [name for name in CONTROLLERS if name not in ("static_final", "static_full")])
@few(4)
def test_every_controller_can_act_where_a_users_blueprint_fits(experiment: Experiment, name: str) -> None:
    env = small_env(experiment)
    chooser = controller(experiment, name)
    env.reset()
    play_episode(env, chooser)
    assert set(env.state.blueprint.unique().tolist()) <= {-1, blueprint_ids().index(OWN)}


@pytest.mark.slow
def test_a_run_its_evaluation_and_their_reports_know_a_users_blueprint(tmp_path: Path, own_blueprint: int) -> None:
    run_dir, judged = tmp_path / "runs" / "one", tmp_path / "judged"
    words = ["trainer.num_iterations=2", "telemetry.level=debug", "telemetry.console=plain", "wandb.mode=offline"]
    words += ["counterfactual.shapley_permutations=4", "evaluation.controllers=[learned,heuristic,random,never]"]
    train(compose(*WORDS, *words, "wandb.project=tested", "slots.max_seeds=3"), run_dir)
    events = read_jsonl(run_dir / "events.jsonl")
    for kind in {event["kind"] for event in events if "blueprint" in event}:
        names = {event["blueprint"] for event in events if event["kind"] == kind}
        assert names <= {OWN, None}, kind
        assert OWN in names, kind
    config = EvaluateConfig(
        checkpoint=str(run_dir),
        num_hosts=3,
        tuning_epochs=160,
        draws=200,
        console=ConsoleMode.plain,
        controllers=[*CONTROLLERS],
    )
    config = replace(config, controllers=[name for name in config.controllers if name != "schedule"])
    check(config)
    evaluate(config, judged)
    result = json.loads((judged / "result.json").read_text())
    assert OWN in json.dumps(result)
    assert OWN in (judged / "hosts.csv").read_text()
    assert report([str(run_dir.parent), "--out", str(tmp_path / "report")]) == 0
    assert OWN in "".join(path.read_text() for path in (tmp_path / "report").rglob("*.html"))
