"""A number that is not finite ends the episode of its own environment and affects no other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import NEEDS_FP16, Eager, action, controller, small_env, small_experiment, waits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.algorithms.gae import gae
from esper.envs import growth
from esper.envs.breakdowns import Breakdown, guessing
from esper.envs.growth import GrowthEnv
from esper.envs.records import StepResult
from esper.envs.rewards import REWARDS, Potential, RewardInputs, paired_reward
from esper.growth.actions import Op
from tests.tiers import few

NAN, INF = float("nan"), float("inf")
DIVERGING = f"lr_times_1{'0' * 30}"
EPOCHS = 3


def diverging(env: GrowthEnv) -> Tensor:
    """Return the hosts that crash by themselves, ``bool [E]``."""
    return torch.tensor([instance.family == DIVERGING for instance in env.instances])


def rewards_of(env: GrowthEnv, seed: int = 0) -> list[StepResult]:
    """Play like a rollout: environments whose host has crashed are reset."""
    chooser, observation, results = Eager(seed), env.reset(), []
    for _ in range(EPOCHS):
        result = env.step(chooser.act(env.view(observation)))
        results.append(result)
        observation = env.reset(result.terminated) if result.terminated.any() else result.observation
    return results


@pytest.mark.parametrize(
    ("family", "twin", "amp"),
    [
        *((family, twin, "off") for family in REWARDS for twin in ("cached", "none")),
        ("paired", "cached", "bf16"),
        pytest.param("paired", "cached", "fp16", marks=NEEDS_FP16),
        pytest.param("loss", "cached", "fp16", marks=NEEDS_FP16),
    ],
)
@few(4)
def test_hosts_that_diverge_by_themselves_leave_every_number_finite(family: str, twin: str, amp: str) -> None:
    experiment = small_experiment(f"amp={amp}", f"env.num_epochs={EPOCHS}", f"reward.family={family}")
    env = small_env(experiment, families=("intact", DIVERGING), measure_test=True)
    if twin == "none":
        env.rewarder.twins = None
    crashes = 0
    for result in rewards_of(env):
        assert result.reward.isfinite().all()
        assert result.observation.features.isfinite().all()
        assert result.accuracy.isfinite().all()
        assert all(values.isfinite().all() for values in result.components.values())
        for episode in result.episodes:
            numbers = (episode.episode_return, episode.val_accuracy, episode.test_accuracy, episode.relative_flops)
            assert torch.tensor(numbers).isfinite().all()
            assert episode.crashed == (episode.instance.family == DIVERGING)
            crashes += episode.crashed
    assert crashes
    assert (env.population.hosts.values.isfinite().all(dim=1) | diverging(env)).all()


@pytest.mark.parametrize("family", ["paired", "loss"])
@pytest.mark.parametrize("mapping", ["loop", "grouped", "matmul"])
@few(2)
def test_never_growing_earns_exactly_zero_on_hosts_that_break_down_by_themselves(mapping: str, family: str) -> None:
    experiment = small_experiment(f"env.mapping={mapping}", "env.num_epochs=3", f"reward.family={family}")
    env = small_env(experiment, families=(DIVERGING, "intact"))
    never = controller(experiment, "never")
    observation = env.reset()
    assert diverging(env).any()
    for _ in range(3):
        result = env.step(never.act(env.view(observation)))
        assert (result.reward == 0).all()
        assert all(episode.episode_return == 0 for episode in result.episodes)
        observation = env.reset(result.terminated) if result.terminated.any() else result.observation


def test_a_twin_that_breaks_down_counts_as_guessing_from_then_on() -> None:
    experiment = small_experiment("env.num_epochs=3")
    env = small_env(experiment, families=(DIVERGING,))
    env.reset()
    assert env.rewarder.twins is not None
    curve, guess = env.rewarder.twins[env.instances[0]], guessing(experiment.task)
    assert curve.crashed
    assert curve.points[-1] == guess.points == 10
    assert (curve.loss[-1], curve.accuracy[-1], curve.test_accuracy) == (guess.loss, 0.1, 0.1)
    assert all(getattr(curve, name).isfinite().all() for name in ("points", "loss", "accuracy"))
    [crashed] = [e for r in play_episode_until_crash(env) for e in r.episodes if e.environment == 0]
    assert (crashed.val_accuracy, crashed.crashed) == (0.1, True)


def play_episode_until_crash(env: GrowthEnv) -> list[StepResult]:
    env.reset()
    results = [env.step(waits(env.num_envs))]
    while not results[-1].terminated.any():
        results.append(env.step(waits(env.num_envs)))
    return results


# ------------------------------------------------------------------------------------------ one number, one environment

TRAINING = [f"training.{name}" for name in ("loss", "host_norm", "module_norm", "probes")]
SCORES = [f"{which}.{name}" for which in ("scores", "kept", "off") for name in ("points", "loss", "accuracy")]
MODULES = ["contribution", "interaction", "boost"]

REWARD_READS = {
    "paired": {"training.loss", "scores.points", "scores.loss", "kept.points"},
    "loss": {"training.loss", "scores.points", "scores.loss", "kept.loss"},
    "contribution": {"training.loss", "scores.points", "scores.loss", "kept.points", "off.points"},
}


def play(
    patch: pytest.MonkeyPatch, family: str, at: int = -1, env: int = 0, name: str = "", value: float = NAN
) -> list[StepResult]:
    """Play an episode under one script, with one number of one environment replaced in one step; include its
    advantages.
    """
    experiment = small_experiment(f"env.num_epochs={EPOCHS}", f"reward.family={family}")
    growing = small_env(experiment, measure_test=True)
    clock = iter(range(EPOCHS))
    train_epoch, valuate = growth.train_epoch, growth.valuate

    def write(record: object, field: str) -> object:
        fresh = getattr(record, field).clone()
        fresh[env] = value
        return replace(record, **{field: fresh})  # type: ignore[type-var]

    def trained(*args: object, **kwargs: object) -> object:
        stats = train_epoch(*args, **kwargs)  # type: ignore[arg-type]
        poisoned = growing.history.epoch.max() == at and name in TRAINING
        return write(stats, name.removeprefix("training.")) if poisoned else stats

    def valuated(*args: object, **kwargs: object) -> object:
        found = valuate(*args, **kwargs)  # type: ignore[arg-type]
        if next(clock) != at or name in ("", *TRAINING):
            return found
        if name in MODULES:
            return write(found, name)
        which, field = name.split(".")
        return replace(found, **{which: write(getattr(found, which), field)})

    results = []
    with patch.context() as patched:
        patched.setattr(growth, "train_epoch", trained)
        patched.setattr(growth, "valuate", valuated)
        growing.reset()
        for step in range(EPOCHS):
            born = action(Op.GERMINATE, slot=1, blueprint=1, alpha_target=2)
            results.append(growing.step(waits(3, e0=born, e1=born) if step == 0 else waits(3)))
            if results[-1].terminated.any() and step + 1 < EPOCHS:
                growing.reset(results[-1].terminated)
    return results


_healthy: dict[str, list[StepResult]] = {}


@pytest.mark.parametrize("family", REWARDS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*TRAINING, *SCORES, *MODULES]),
    env=st.integers(0, 2),
    at=st.integers(0, EPOCHS - 1),
    value=st.sampled_from([NAN, INF, -INF]),
)
@few(2)
def test_one_poisoned_number_costs_one_environment_and_changes_no_bit_elsewhere(
    monkeypatch: pytest.MonkeyPatch, family: str, name: str, env: int, at: int, value: float
) -> None:
    if family not in _healthy:
        _healthy[family] = play(monkeypatch, family)
    sick = play(monkeypatch, family, at, env, name, value)
    others = torch.arange(3) != env
    for step, (a, b) in enumerate(zip(_healthy[family], sick, strict=True)):
        assert torch.equal(a.reward[others], b.reward[others])
        assert torch.equal(a.terminated[others], b.terminated[others])
        assert torch.equal(a.observation.features[others], b.observation.features[others])
        assert b.reward.isfinite().all()
        assert b.observation.features.isfinite().all()
        assert all(values.isfinite().all() for values in b.components.values())
        crash = step == at and name in REWARD_READS[family] and (not name.startswith("kept") or at == EPOCHS - 1)
        assert [bool(found) for found in b.breakdown] == [crash and row == env for row in range(3)]
        for episode in b.episodes:
            numbers = (episode.episode_return, episode.val_accuracy, episode.test_accuracy, episode.relative_flops)
            assert torch.tensor(numbers).isfinite().all()
    ends = torch.stack([result.terminated for result in sick], dim=1)
    rewards = torch.stack([result.reward for result in sick], dim=1)
    nothing = torch.zeros_like(rewards)
    advantages, returns = gae(rewards, nothing, nothing, ends, torch.zeros_like(ends), 1.0, 0.95)
    assert advantages.isfinite().all()
    assert returns.isfinite().all()


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_reward_family_that_pays_nonsense_costs_the_environments_that_it_is_paid_in(value: float) -> None:
    """Also if its value for the crash is invalid."""
    experiment = small_experiment(f"env.num_epochs={EPOCHS}")
    env, plain = small_env(experiment), small_env(experiment)

    def strange(previous: Potential, inputs: RewardInputs, **numbers: float) -> tuple[Potential, dict[str, Tensor]]:
        potential, components = paired_reward(previous, inputs, **numbers)
        components["gain"][1] = potential.gap[1] = value
        return potential, components

    env.rewarder.family = replace(REWARDS["paired"], step=strange)
    env.reset()
    plain.reset()
    for _ in range(EPOCHS - 1):
        result, expected = env.step(waits(3)), plain.step(waits(3))
        assert result.breakdown.tolist() == [Breakdown.NONE, Breakdown.REWARD, Breakdown.NONE]
        assert result.reward.isfinite().all()
        assert env.rewarder.potential.gap.isfinite().all()
        assert torch.equal(result.reward[[0, 2]], expected.reward[[0, 2]])
        assert torch.equal(result.observation.features[[0, 2]], expected.observation.features[[0, 2]])
        [episode] = result.episodes
        assert math.isfinite(episode.episode_return)
        env.reset(result.terminated)
