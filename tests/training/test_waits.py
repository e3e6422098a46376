"""Waiting for a GPU: a step of the environments and a minibatch of the update have ceilings, whatever the number of
hosts.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers import small_env, small_experiment

from esper.algorithms import RolloutBuffer
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.growth.actions import Op
from esper.training.rollout import RolloutState, collect

PER_STEP = 10
"""Acting 2, training 2, validation 1, parameters 1; new hosts 2, test scores 1, the last step's value 1."""

PER_MINIBATCH = 4
PER_UPDATE = 10
"""Besides the minibatches."""

NUM_STEPS = 12
"""Steps of a rollout: hosts, whose episodes have ten epochs, end and begin within it."""


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Count how often the program waits for a device, by the line that does."""
    counts: Counter[str] = Counter()

    def count(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        assert "called a synchronizing CUDA operation" in str(message), message
        counts[f"{filename}:{lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counts
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("num_envs", [2, 6])
def test_steps_and_minibatches_wait_no_more_often_than_agreed(num_envs: int) -> None:
    experiment = small_experiment("devices=0", f"trainer.num_envs={num_envs}")
    env = small_env(experiment, num_envs=num_envs, measure_test=True)
    assert env.rewarder.twins is not None
    env.rewarder.twins.require(env.pool)
    policy, normaliser = experiment.policy()
    sizes = policy.num_features, policy.num_slots, policy.num_blueprints, policy.state_dim
    buffer = RolloutBuffer(num_envs, NUM_STEPS, *sizes, experiment.device)
    rollout, generator = RolloutState(env.reset(), policy.initial_state(num_envs)), torch.Generator().manual_seed(1)
    births, ended = [], []

    def note(_: Observation, actions: torch.Tensor, result: StepResult) -> None:
        births.append(int((actions[:, 0] == Op.GERMINATE).sum()))
        ended.append(int(result.terminated.sum()))

    def one_step() -> None:
        collect(env, policy, normaliser, buffer, rollout, generator, note, stop=lambda: True)

    one_step()  # what is made once, such as tables on the device, may wait
    for _ in range(1, NUM_STEPS):
        with counted_waits() as waits:
            one_step()
        assert 0 < waits.total() <= PER_STEP, waits
    assert sum(births) > num_envs
    assert sum(ended) == num_envs

    algorithm, ppo = experiment.algorithm(policy, env), experiment.config.ppo
    with counted_waits() as waits:
        algorithm.update(buffer, 1)
    assert waits.total() <= PER_UPDATE + PER_MINIBATCH * ppo.num_minibatches * ppo.update_epochs, waits
