"""The controller that a run imitates: what it is built from, and what is refused before the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import small_experiment, undone
from torch import Tensor

from esper.config import UsageError, compose
from esper.controllers import ControllerContext, Static, register_controller, waiting
from esper.envs.records import EnvView
from esper.experiment.imitating import build_expert
from esper.runtime.ranks import Ranks
from tests.tiers import few


class Forgetful:
    """A controller as the guide asks for it, but for its state."""

    name = "forgetful"

    def reset(self, which: Tensor) -> None:
        """Nothing to forget."""

    def act(self, view: EnvView) -> Tensor:
        return waiting(view.state.num_envs)


def built(name: str, build: Any) -> None:
    def expert(context: ControllerContext) -> Any:
        return build()

    with undone():
        register_controller(name, expert)
        experiment = small_experiment(f"imitation.controller={name}")
        build_expert(experiment, *experiment.policy(), num_envs=2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Forgetful, "'own' has no state_dict and no load_state_dict, without which a run cannot be resumed: derive"),
        (lambda: Static([[], []], "own"), "'own' plants modules before the first epoch, which no action of a policy"),
    ],
)
def test_a_users_controller_that_cannot_be_imitated_is_refused_in_one_line(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        built("own", build)
    assert str(caught.value).startswith("imitation.controller: ")
    assert "\n" not in str(caught.value)


def test_ranks_imitate_different_draws_of_a_controller_that_draws() -> None:
    experiment = small_experiment("imitation.controller=random")
    states = [
        build_expert(each, *each.policy(), num_envs=2).state_dict()["position"]
        for each in (replace(experiment, ranks=Ranks(rank=rank, size=2)) for rank in (0, 1))
    ]
    assert not torch.equal(*states)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["imitation.iterations=31"],
            "imitation.iterations must be at most 30 (trainer.num_iterations), got 31",
        ),
        (
            ["imitation.num_minibatches=33"],
            "imitation.num_minibatches must be at most 32 (trainer.num_envs), got 33",
        ),
        (
            ["imitation.num_minibatches=17", "devices=[cpu,cpu]"],
            "imitation.num_minibatches is 17: set it to at most 16",
        ),
    ],
)
@few(1)
def test_imitation_has_to_fit_into_the_run(words: list[str], message: str) -> None:
    compose(*words)  # of nothing
    with pytest.raises(UsageError) as caught:
        compose("imitation.controller=schedule", *words)
    assert message in str(caught.value)
