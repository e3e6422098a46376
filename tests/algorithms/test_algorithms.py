"""The interface that a run requires of any algorithm, Esper's or a user's."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cue_world import filled_buffer, small_policy
from helpers import SMALL, small_experiment
from resuming import different_runs
from schema_defaults import a2c_settings, ppo_settings

from esper.algorithms import ALGORITHMS, AlgorithmContext, build_algorithm
from esper.config import compose, plugins
from esper.config.plugins import activate
from esper.runtime.run_folder import RunFolder
from esper.runtime.state import restore, states
from esper.runtime.user_code import UsersCodeError
from esper.telemetry.hub import TelemetryHub
from esper.training.run import train
from esper.training.trainer import Trainer

QUICK = (*SMALL, "env.num_epochs=4", "env.mapping=grouped")
EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "algorithm.py"


def context(**given: Any) -> AlgorithmContext:
    policy, a2c, ppo = small_policy(), a2c_settings(), ppo_settings()
    return replace(AlgorithmContext(policy=policy, gamma=1.0, seed=0, ppo=ppo, a2c=a2c), **given)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo registrations after a test."""
    monkeypatch.setattr(plugins, "_seen", {})
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS))
    yield
    activate([])


def test_an_unknown_algorithm_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"^algorithm: unknown 'dqn'; choose from ppo, a2c$"):
        build_algorithm("dqn", context())


def test_the_discount_is_the_environments() -> None:
    experiment = small_experiment("ppo.gamma=0.5")
    env = experiment.env(range(2), experiment.pool("train", 2), None, run_seed=0, measure_test=False)
    env.settings = replace(env.settings, gamma=0.25)
    algorithm: Any = experiment.algorithm(experiment.policy()[0], env)
    assert algorithm._gamma == 0.25


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_its_state_is_all_that_the_next_update_depends_on(name: str) -> None:
    policy = small_policy()
    buffer, first = filled_buffer(policy), build_algorithm(name, context(policy=policy))
    first.update(buffer, 1)
    twin = copy.deepcopy(policy)
    second = build_algorithm(name, context(policy=twin, seed=7))
    restore({**second.shared, **second.own}, copy.deepcopy(states({**first.shared, **first.own})))
    assert first.update(buffer, 2) == second.update(buffer, 2)
    for one, other in zip(policy.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_a_run_of_a2c_that_was_resumed_is_the_run_that_was_not(tmp_path: Path) -> None:
    words = (*QUICK, "algorithm=a2c", "evaluation.num_hosts=3", "telemetry.plots=false")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(compose(*words, "trainer.num_iterations=4"), whole)
    train(compose(*words, "trainer.num_iterations=2"), halves)
    train(compose(*words, "trainer.num_iterations=4", f"resume={halves}"), halves)
    assert different_runs(whole, halves) == []


# ------------------------------------------------------------------------------------------------------------ plugins


def test_the_example_of_a_plugin_is_short_and_learns(tmp_path: Path, own_registry: None) -> None:
    code = [line for line in EXAMPLE.read_text().splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 15
    experiment = small_experiment(*QUICK[len(SMALL) :])
    words = (*QUICK, "plugins=[examples.plugins.algorithm]", "algorithm=reinforce")
    experiment = replace(experiment, config=compose(*words))
    trainer = Trainer(experiment, RunFolder(tmp_path), TelemetryHub([]))
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    trainer.begin()
    metrics = trainer.iterate()
    assert metrics is not None
    assert metrics["losses/grad_norm"] is not None
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    sys.modules.pop("examples.plugins.algorithm", None)


def test_what_goes_wrong_in_a_users_algorithm_is_one_line(own_registry: None) -> None:
    def update(buffer: Any, iteration: int) -> Any:
        return None if iteration == 1 else 1 / 0

    ALGORITHMS.register("broken", lambda context: SimpleNamespace(update=update, shared={}, own={}))
    ALGORITHMS.register("none", lambda context: 7)
    ALGORITHMS.register("failing", lambda context: 1 / 0)
    with pytest.raises(UsersCodeError, match=r"^algorithm 'none': .* returns a int, which has no update, shared, own$"):
        build_algorithm("none", context())
    with pytest.raises(UsersCodeError, match=r"^algorithm 'failing': .*ZeroDivisionError: division by zero"):
        build_algorithm("failing", context())
    algorithm = build_algorithm("broken", context())
    with pytest.raises(UsersCodeError, match=r"must return an UpdateResult, not a NoneType$"):
        algorithm.update(None, 1)  # type: ignore[arg-type]
    with pytest.raises(UsersCodeError, match=r"^algorithm 'broken': .*[.]update: ZeroDivisionError"):
        algorithm.update(None, 2)  # type: ignore[arg-type]
