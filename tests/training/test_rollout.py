"""Collecting rollouts on real hosts: resets, memory, bootstraps, and log-probabilities that the update reproduces."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from helpers import give_opinions, small_env, small_experiment
from torch import Tensor

from esper.algorithms import RolloutBuffer
from esper.envs.features import BASE_INDEX
from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.experiment.build import Experiment
from esper.growth.actions import ActionMasks
from esper.policy import GrowthPolicy, Hidden, Normaliser
from esper.policy.normaliser import moments
from esper.training.rollout import RolloutState, collect

NUM_EPOCHS, NUM_STEPS, NUM_ENVS = 5, 3, 3


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment(f"env.num_epochs={NUM_EPOCHS}")


@dataclass
class Collection:
    """Everything involved in collecting some rollouts."""

    env: GrowthEnv
    policy: GrowthPolicy
    normaliser: Normaliser
    buffer: RolloutBuffer
    rollout: RolloutState
    generator: torch.Generator
    poison: dict[int, int] = field(default_factory=dict)  # total step -> environment whose host then breaks
    seen: list[Observation] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    resets: list[tuple[int, list[bool]]] = field(default_factory=list)
    bootstraps: list[tuple[Tensor, Hidden, Tensor]] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)  # before every step

    def collect(self) -> Tensor:
        return collect(self.env, self.policy, self.normaliser, self.buffer, self.rollout, self.generator, self.take)

    def take(self, observation: Observation, actions: Tensor, result: StepResult) -> None:
        self.seen.append(observation)
        self.results.append(result)
        environment = self.poison.get(len(self.results))
        if environment is not None:
            self.env.population.hosts.values.detach()[environment, 0] = torch.nan


def start(experiment: Experiment, monkeypatch: pytest.MonkeyPatch, num_steps: int = NUM_STEPS) -> Collection:
    """Make a policy with clear preferences, a normaliser with statistics, and spies on resets, memory and
    bootstraps.
    """
    env = small_env(experiment)
    policy, normaliser = experiment.policy()
    generator = torch.Generator().manual_seed(7)
    give_opinions(policy)
    observation = env.reset()
    normaliser.merge(moments(observation.features + torch.rand(observation.features.shape, generator=generator)))
    buffer = RolloutBuffer(
        NUM_ENVS, num_steps, policy.num_features, policy.num_slots, policy.num_blueprints, policy.state_dim
    )
    rollout = RolloutState(observation, policy.initial_state(NUM_ENVS))
    made = Collection(env, policy, normaliser, buffer, rollout, generator)
    reset, act, value = env.reset, policy.act, policy.value

    def spied_reset(which: Tensor | None = None) -> Observation:
        assert which is not None
        made.resets.append((len(made.results), which.tolist()))
        return reset(which)

    def spied_act(features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden, *rest, **named):  # type: ignore[no-untyped-def]
        made.hidden.append(hidden)
        return act(features, blueprint_index, masks, hidden, *rest, **named)

    def spied_value(features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden) -> Tensor:
        found = value(features, blueprint_index, masks, hidden)
        made.bootstraps.append((features, hidden, found))
        return found

    monkeypatch.setattr(env, "reset", spied_reset)
    monkeypatch.setattr(policy, "act", spied_act)
    monkeypatch.setattr(policy, "value", spied_value)
    return made


def test_environments_are_reset_exactly_where_an_episode_ended(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of five steps in rollouts of three, and a crash after the seventh: resets follow ends, nothing else."""
    made = start(experiment, monkeypatch)
    made.poison = {6: 1}
    for _ in range(4):
        made.collect()
    expected = [(5, [True] * 3), (7, [False, True, False]), (10, [True, False, True]), (12, [False, True, False])]
    assert made.resets == expected
    epochs = torch.stack([result.epochs for result in made.results])
    assert epochs[:, 0].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert epochs[:, 1].tolist() == [1, 2, 3, 4, 5, 1, 2, 1, 2, 3, 4, 5]
    terminated = torch.stack([result.terminated for result in made.results])
    assert [(step + 1, row.tolist()) for step, row in enumerate(terminated) if row.any()] == expected


def test_memory_is_zero_where_an_episode_starts_and_carried_everywhere_else(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = start(experiment, monkeypatch)
    made.poison = {6: 1}
    for rollout in range(3):
        before = tuple(part.clone() for part in made.rollout.hidden)
        made.collect()
        stored = made.buffer.data.hidden
        assert all(torch.equal(a, b) for a, b in zip(stored, before, strict=True)), rollout
    fresh = torch.ones(NUM_ENVS, dtype=torch.bool)
    for step, result in enumerate(made.results):
        for part in made.hidden[step]:
            assert torch.equal((part == 0).all(dim=1), fresh), step
        fresh = result.terminated
    # Carried, and not merely non-zero: one walk of the LSTM over the whole of environment 0's first episode.
    hidden = made.policy.initial_state(1)
    for step in range(NUM_EPOCHS):
        for part, spied in zip(hidden, made.hidden[step], strict=True):
            assert torch.allclose(part, spied[:1], atol=1e-6)
        features = made.normaliser(made.seen[step].features[:1])
        seen = made.seen[step]
        _, _, hidden = made.policy._step(features, seen.blueprint_index[:1], seen.masks[:1], hidden)


@pytest.mark.parametrize("num_steps", [3, NUM_EPOCHS, 7])
def test_the_update_finds_the_log_probs_of_the_rollout(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """Ratio 1 on the first pass: rollouts shorter than, as long as, and longer than an episode, with a crash."""
    made = start(experiment, monkeypatch, num_steps)
    made.poison = {6: 2}
    for _ in range(2):
        made.collect()
        data = made.buffer.data
        evaluation = made.policy.evaluate(
            data.features, data.blueprint_index, data.masks, data.actions, data.hidden, data.ends
        )
        assert torch.allclose(evaluation.log_prob, data.log_prob, atol=1e-5)
        assert torch.allclose(evaluation.q, data.q, atol=1e-5)
        ratio = (evaluation.log_prob.sum(-1) - data.log_prob.sum(-1)).exp()
        assert ratio.sub(1).abs().max() < 1e-5
    assert data.log_prob.min() < -0.5, "there were choices"
    assert data.ends.any()


def test_the_edge_of_a_rollout_bootstraps_from_the_true_next_state(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any reset, with the memory that the last step left, also where the episode ended with it."""
    made = start(experiment, monkeypatch, NUM_EPOCHS)
    made.collect()
    [(features, hidden, value)] = made.bootstraps
    following = made.results[-1].observation
    assert (following.features[:, BASE_INDEX["epoch"]] == 1).all()
    assert torch.equal(features, made.normaliser(following.features))
    seen = made.seen[-1]
    left = made.policy._step(made.normaliser(seen.features), seen.blueprint_index, seen.masks, made.hidden[-1])[2]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(hidden, left, strict=True))
    assert torch.equal(made.buffer.data.bootstrap_value[:, -1], value)
    assert (made.buffer.data.bootstrap_value[:, :-1] == 0).all()
    assert (made.rollout.observation.features[:, BASE_INDEX["epoch"]] == 0).all(), "and then it is reset"
    assert all((part == 0).all() for part in made.rollout.hidden)


def test_the_buffer_holds_what_the_environment_said(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    made = start(experiment, monkeypatch)
    before = {name: value.clone() for name, value in made.normaliser.state_dict().items()}
    raw = made.collect()
    data = made.buffer.data
    assert torch.equal(raw, torch.stack([observation.features for observation in made.seen], dim=1))
    assert torch.equal(data.features, made.normaliser(raw))
    assert torch.equal(data.reward, torch.stack([result.reward for result in made.results], dim=1))
    assert torch.equal(data.terminated, torch.stack([result.terminated for result in made.results], dim=1))
    assert not data.truncated.any()
    for step, observation in enumerate(made.seen):
        assert torch.equal(data.masks.slot[:, step], observation.masks.slot)
        assert torch.equal(data.blueprint_index[:, step], observation.blueprint_index)
    assert all(result.applied.success.all() for result in made.results)
    after = made.normaliser.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()), "collecting moves no statistics"
