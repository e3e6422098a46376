"""Refusals of impossible evaluations: before anything starts, and in the evaluation's own keys."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import SMALL

from esper.config import compose, to_plain
from esper.config.evaluate import EvaluateConfig
from esper.evaluation.run import OWN_KEYS, check, experiment_config, read_trained
from esper.experiment.build import build_experiment
from esper.experiment.checkpoint import save_checkpoint
from esper.runtime.options import Greedy

NUM_EPOCHS = 10
CONTROLLERS = ["learned", "never", "heuristic", "schedule_best"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EvaluateConfig:
    """Make an evaluation of an untrained policy, of a run whose starting checkpoint is gone."""
    folder = tmp_path_factory.mktemp("run")
    experiment = build_experiment(compose(*SMALL, "env.num_epochs=10", "instances.num_train=7"))
    policy, normaliser = experiment.policy()
    plain = to_plain(experiment.config)
    plain["checkpoint"]["path"] = str(folder / "gone.pt")
    save_checkpoint(folder / "last.pt", policy=policy, normaliser=normaliser, iteration=3, config=plain)
    return EvaluateConfig(checkpoint=str(folder / "last.pt"), controllers=CONTROLLERS, num_hosts=7)


HUGE = 10**20
INTEGERS = ("num_hosts", "tuning_epochs", "draws", "seed", "num_threads")


def test_every_whole_number_is_tried_here() -> None:
    numbers = {item.name for item in fields(EvaluateConfig) if str(item.type).startswith("int")}
    assert numbers == set(INTEGERS)


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("value", [0, 1, -1, HUGE])
def test_whole_numbers_are_accepted_or_refused_by_key_and_value(config: EvaluateConfig, key: str, value: int) -> None:
    accepted = {("seed", 0), ("seed", 1), ("num_threads", 0), ("num_threads", 1)}
    if (key, value) in accepted:
        check(replace(config, **{key: value}))
        return
    with pytest.raises(ValueError, match=rf"^{key} must be [^\n]*, got {value}\b[^\n]*$"):
        check(replace(config, **{key: value}))


@pytest.mark.parametrize("greedy", [None, *Greedy])
def test_the_greedy_rule_is_the_runs_unless_another_is_chosen(config: EvaluateConfig, greedy: Greedy | None) -> None:
    chosen = replace(config, greedy=greedy)
    assert experiment_config(chosen, read_trained(chosen)).evaluation.greedy is (greedy or Greedy.mode)


@pytest.mark.parametrize("budget", [1, NUM_EPOCHS - 1])
def test_a_budget_below_an_episode_is_refused_before_anything_is_tuned(config: EvaluateConfig, budget: int) -> None:
    with pytest.raises(ValueError) as refusal:
        check(replace(config, tuning_epochs=budget))
    assert str(refusal.value) == (
        f"tuning_epochs must be at least {NUM_EPOCHS}, one episode of these hosts, got {budget}; or leave heuristic, "
        "schedule_best out of controllers"
    )
    check(replace(config, tuning_epochs=budget, controllers=["learned", "never"]))
    check(replace(config, tuning_epochs=NUM_EPOCHS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"families": {"nope": 1.0}}, "families.nope: unknown host fault 'nope'"),
        ({"families": {"starved_9": 1.0}}, "families.starved_9: host fault 'starved_9' names block 9"),
        ({"families": {"narrow_999": 1.0}}, "channels of families.narrow_999 must be at most"),
        ({"families": {"intact": -1.0}}, "families.intact must be at least 0, got -1.0"),
        ({"families": {"intact": 0.0}}, "families must give a weight above 0 to at least one of ['intact']"),
        ({"devices": ["cpu"] * 9}, "gives 9 ranks but num_hosts is 7: each needs at least one"),
        ({"controllers": ["nope"]}, "controllers: unknown 'nope'; choose from learned, "),
    ],
)
def test_refusals_name_keys_that_an_evaluation_has(
    config: EvaluateConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        check(replace(config, **changes))
    assert message in str(refusal.value)
    assert not [key for key in OWN_KEYS if key in str(refusal.value)]
    assert "cannot be played here" not in str(refusal.value), "it is the evaluation that asks for it"


def test_what_is_the_runs_own_is_said_to_be_the_runs(
    config: EvaluateConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(*arguments: object, **options: object) -> None:
        raise ValueError("task.root: no data")

    monkeypatch.setattr("esper.experiment.preflight.load_task", gone)
    with pytest.raises(ValueError, match=r"^checkpoint: the run of .* cannot be played here: task.root: no data$"):
        check(config)
