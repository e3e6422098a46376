"""Rewards of the real environment, against independent evaluations of the networks it grew."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import (
    NEEDS_FP16,
    Eager,
    action,
    controller,
    plain_network,
    plain_points,
    play_episode,
    replay,
    small_env,
    small_experiment,
    waits,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.records import StepResult
from esper.envs.rewards import REWARDS, total
from esper.growth import Stage
from esper.growth.actions import AlphaSpeed, AlphaTarget, Op
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS
from tests.tiers import few

CONV_LIGHT, BOTTLENECK = 1, 5
GERMINATE = action(Op.GERMINATE, slot=1, blueprint=CONV_LIGHT, alpha_target=AlphaTarget.FULL)


def one_host(env: GrowthEnv) -> GrowthEnv:
    """Give every environment the same instance."""
    env.pool = InstancePool(env.pool.instances[:1])
    return env


def score(env: GrowthEnv, environment: int, network: SegmentedHost) -> float:
    """Score a network on val under the environment's reward family, by torch alone."""
    val, weights = env.loader.task.val, env.loader.data(env.instances[environment]).val_weight
    if env.rewarder.family is not REWARDS["loss"]:
        return plain_points(network, val, weights)
    with torch.no_grad():
        losses = cross_entropy(network(val.inputs.double()), val.targets, reduction="none")
    return -100 * float((losses * weights.double()).sum() / weights.double().sum()) / math.log(10)


def twin_score(env: GrowthEnv, environment: int, epoch: int) -> float:
    assert env.rewarder.twins is not None
    curve = env.rewarder.twins[env.instances[environment]]
    lost = env.rewarder.family is REWARDS["loss"]
    return float(-100 * curve.loss[epoch] / math.log(10) if lost else curve.points[epoch])


def phi(env: GrowthEnv, environment: int, kept_only: bool = False) -> float:
    """Compute S - B - rho of the network after the last step, by torch alone."""
    network, added = plain_network(env, environment, kept_only)
    own = score(env, environment, network)
    if env.rewarder.family is REWARDS["contribution"]:
        for slot_id in tuple(network.attached):
            network.detach(slot_id)
        base = score(env, environment, network)
    else:
        base = twin_score(env, environment, int(env.history.epoch[environment]) - 1)
    host = int(env.population.num_host_parameters()[environment])
    return own - base - float(env.rents[environment]) * added / host


def discounted(results: list[StepResult], environment: int, gamma: float) -> float:
    return sum(gamma**t * float(total(result.components)[environment]) for t, result in enumerate(results))


# ------------------------------------------------------------------------------------------------------ exactly zero


PRECISIONS = ["off", "bf16", pytest.param("fp16", marks=NEEDS_FP16)]


@pytest.mark.parametrize("amp", PRECISIONS)
@pytest.mark.parametrize("mapping", sorted(MAPPINGS))
@few(3)
def test_never_growing_earns_exactly_zero_in_every_step(mapping: str, amp: str) -> None:
    experiment = small_experiment(f"env.mapping={mapping}", f"amp={amp}", "env.num_epochs=5")
    results = play_episode(small_env(experiment), controller(experiment, "never"))
    assert all((result.reward == 0).all() for result in results)
    assert all(episode.episode_return == 0 for episode in results[-1].episodes)


@pytest.mark.parametrize("mapping", ["loop", "grouped", "matmul"])
@few(2)
def test_never_growing_earns_exactly_zero_whatever_the_family(mapping: str) -> None:
    """All at once, in another order than their twins."""
    families = ("intact", "narrow_4", "few_samples", "label_noise", "lr_times_3", "lr_over_3", "starved_0+starved_2")
    experiment = small_experiment(f"env.mapping={mapping}", "env.num_epochs=4", "instances.num_train=7")
    env = small_env(experiment, num_envs=7, families=families)
    assert env.rewarder.twins is not None
    env.rewarder.twins.require(env.pool)
    results = play_episode(env, controller(experiment, "never", num_envs=7))
    assert all((result.reward == 0).all() for result in results)
    assert {instance.family for instance in env.instances} == set(families)
    assert env.instances != list(env.pool)


@pytest.mark.parametrize("incubation", ["auxiliary", "straight_through"])
@pytest.mark.parametrize(
    ("mapping", "amp"),
    [
        *((mapping, "off") for mapping in sorted(MAPPINGS)),
        ("grouped", "bf16"),
        pytest.param("grouped", "fp16", marks=NEEDS_FP16),
    ],
)
@few(3)
def test_modules_that_stay_in_training_earn_exactly_zero_in_every_step(mapping: str, amp: str, incubation: str) -> None:
    experiment = small_experiment(
        f"env.mapping={mapping}",
        f"amp={amp}",
        f"slots.incubation={incubation}",
        "env.num_epochs=6",
        "slots.min_training_epochs=3",
    )
    env = small_env(experiment)
    extend = [action(Op.EXTEND, slot=0), action(Op.EXTEND, slot=2)]
    script = [
        waits(3, e0=GERMINATE, e1=action(Op.GERMINATE, slot=0, blueprint=BOTTLENECK, style=3)),
        waits(3, e0=action(Op.GERMINATE, slot=2, blueprint=2, style=2), e1=action(Op.GERMINATE, slot=2, blueprint=7)),
        # Environment 2 goes all the way beside them, which must not matter to its neighbours.
        waits(3, e0=action(Op.EXTEND, slot=1), e1=extend[0], e2=action(Op.GERMINATE, slot=0, blueprint=CONV_LIGHT)),
    ]
    # Two modules each, so that every one's clock is restarted in every second epoch.
    script += [waits(3, e0=action(Op.EXTEND, slot=2), e1=extend[1])]
    script += [waits(3, e0=action(Op.EXTEND, slot=1), e1=extend[0])]
    script += [waits(3, e0=action(Op.EXTEND, slot=2), e1=extend[1])]
    results = replay(env, script)
    assert (env.state.stage[:2] == Stage.TRAINING).sum() == 4
    assert all((result.reward[:2] == 0).all() for result in results)
    assert all((result.applied.success).all() for result in results)
    assert env.state.contribution[env.state.stage == Stage.TRAINING].abs().min() > 0, "previews were measured"


# -------------------------------------------------------------------------------------------------------- telescoping


def record_rewards(env: GrowthEnv, seed: int, poisoned: dict[int, int]) -> tuple[list[tuple[int, float, float]], int]:
    """Play one episode of random legal actions; return each finished one as (length, discounted sum, expected sum)."""
    chooser, observation = Eager(seed), env.reset()
    rewards: list[list[Tensor]] = [[] for _ in range(env.num_envs)]
    found, culls = [], 0
    for step in range(env.num_epochs):
        for environment, when in poisoned.items():
            if when == step:
                env.population.hosts.values.detach()[environment, 3] = torch.nan
        actions = chooser.act(env.view(observation))
        result = env.step(actions)
        observation = result.observation
        assert torch.allclose(result.reward.double(), env.settings.reward_scale * total(result.components))
        culls += int((actions[:, 0] == Op.CULL).sum())
        for environment, reward in enumerate(total(result.components)):
            rewards[environment].append(reward)
        for episode in result.episodes:
            paid = rewards[episode.environment]
            gamma = env.settings.gamma
            worth = crash_value(env, episode.environment) if episode.crashed else phi(env, episode.environment, True)
            paid_sum = sum(gamma**t * float(reward) for t, reward in enumerate(paid))
            assert episode.episode_return == pytest.approx(paid_sum, abs=1e-9)
            assert episode.crashed == (poisoned.get(episode.environment) == step)
            found.append((len(paid), paid_sum, worth))
        if step + 1 < env.num_epochs and result.terminated.any():
            for environment in result.terminated.nonzero().flatten().tolist():
                rewards[environment] = []
            observation = env.reset(result.terminated)
    return found, culls


def crash_value(env: GrowthEnv, environment: int) -> float:
    """G_c: guessing (score 10, or -100 by the loss) against the twin, or against itself, - rho - penalty."""
    added = plain_network(env, environment, kept_only=False)[1]
    rent = env.settings.rent_weight * added / int(env.population.num_host_parameters()[environment])
    last = twin_score(env, environment, -1)
    gap = {"paired": 10 - last, "loss": min(-100 - last, 0), "contribution": 0.0}
    [family] = [name for name, family in REWARDS.items() if family is env.rewarder.family]
    return gap[family] - rent - env.settings.crash_penalty


@pytest.mark.parametrize(("gamma", "shaping"), [(1.0, 0.0), (0.97, 2.0)])
@pytest.mark.parametrize("family", REWARDS)
@few(3)
def test_random_episodes_with_culls_and_crashes_telescope(family: str, gamma: float, shaping: float) -> None:
    experiment = small_experiment("slots.max_seeds=2", f"reward.family={family}", f"reward.stage_shaping={shaping}")
    env = small_env(experiment, num_envs=5, gamma=gamma)
    assert (env.rewarder.family, env.settings.stage_shaping) == (REWARDS[family], shaping)
    found, culls = record_rewards(env, seed=2, poisoned={1: 3, 4: 7})
    kept = sum(int((env.state.stage[environment] == Stage.FOSSILIZED).any()) for environment in (0, 2, 3))
    assert culls > 0, "the sequence was to contain culls"
    assert kept > 0, "the sequence was to contain fossilized modules"
    assert sorted(length for length, _, _ in found) == [4, 8, 10, 10, 10]
    for length, paid, worth in found:
        assert paid == pytest.approx(gamma ** (length - 1) * worth, abs=2e-4)
    assert sum(abs(worth) > 1e-3 for _, _, worth in found) >= 3, "most episodes were to be worth something"


def test_a_crash_pays_the_rent_of_what_stood_there() -> None:
    env = small_env(small_experiment("env.num_epochs=8"))
    replay(env, [waits(3, e0=GERMINATE), *[waits(3)] * 4])
    assert env.state.alpha[0, 1] == 1
    env.population.modules[1, CONV_LIGHT].values.detach().fill_(torch.inf)
    result = env.step(waits(3))
    assert result.terminated.tolist() == [True, False, False]
    [episode] = result.episodes
    assert episode.crashed
    assert episode.episode_return == pytest.approx(crash_value(env, 0), abs=1e-6)
    assert plain_network(env, 0, kept_only=False)[1] == 600


def test_every_reward_is_the_change_of_phi_over_its_own_step() -> None:
    """Reward t contains the epoch that action t shaped: Phi is that of the network right after step t."""
    env = small_env(small_experiment("env.num_epochs=8"), gamma=0.9)
    env.reset()
    script = [waits(3, e0=GERMINATE, e1=GERMINATE), *[waits(3)] * 4]
    script += [waits(3, e0=action(Op.CULL, slot=1, alpha_speed=AlphaSpeed.INSTANT))]
    script += [waits(3, e1=action(Op.SET_ALPHA_TARGET, slot=1, alpha_target=0, alpha_speed=AlphaSpeed.INSTANT))]
    previous = [0.0] * 3
    for step, actions in enumerate(script):
        result = env.step(actions)
        for environment in range(3):
            now = phi(env, environment)
            paid = float(total(result.components)[environment])
            assert paid == pytest.approx(0.9 * now - previous[environment], abs=2e-4), (step, environment)
            previous[environment] = now
    assert env.population.blueprint[:, 1].tolist() == [-1, CONV_LIGHT, -1]
    assert env.state.alpha[1, 1] == 0.5


def test_returns_on_test_compare_final_networks_on_test_images_and_never_growing_earns_zero() -> None:
    experiment = small_experiment("env.num_epochs=8", "env.mapping=grouped")
    env = small_env(experiment, measure_test=True)
    keep, rest = action(Op.FOSSILIZE, slot=1), [waits(3)] * 2
    results = replay(env, [waits(3, e0=GERMINATE, e1=GERMINATE), *[waits(3)] * 4, waits(3, e0=keep), *rest])
    split = env.loader.task.test
    for episode in results[-1].episodes:
        number, weights = episode.environment, env.loader.data(episode.instance).test_weight
        network, added = plain_network(env, number, kept_only=True)
        assert env.rewarder.twins is not None
        twin = env.rewarder.twins[episode.instance].test_points
        rent = float(env.rents[number]) * added / int(env.population.num_host_parameters()[number])
        assert episode.test_return == pytest.approx(plain_points(network, split, weights) - twin - rent, abs=1e-3)
        assert (added > 0) == (number == 0)
        assert episode.test_return != episode.episode_return or number == 2
    assert results[-1].episodes[2].test_return == 0


def test_twins_of_older_checkpoints_have_no_returns_on_test() -> None:
    env = small_env(small_experiment("env.mapping=grouped", "env.num_epochs=1"), measure_test=True)
    twins = env.rewarder.twins
    assert twins is not None
    twins.require(env.pool)
    older = twins.state_dict()
    for record in older["curves"]:
        del record["test_points"], record["test_loss"]
    twins.load_state_dict(older)
    (result,) = replay(env, [waits(3)])
    assert [episode.test_return for episode in result.episodes] == [None] * 3
    assert all(episode.test_accuracy is not None for episode in result.episodes)


# --------------------------------------------------------------------------------------------------- rent, commitment


@pytest.mark.parametrize("family", REWARDS)
@few(2)
def test_each_host_pays_its_own_price_and_the_rest_is_the_same(family: str) -> None:
    experiment = small_experiment("env.num_epochs=8", f"reward.family={family}")
    prices, script = (None, 0.0, 20.0), [waits(3, e0=GERMINATE, e1=GERMINATE, e2=GERMINATE), *[waits(3)] * 4]
    keep = action(Op.FOSSILIZE, slot=1)
    script += [waits(3, e0=keep, e1=keep, e2=keep), *[waits(3)] * 2]
    env = small_env(experiment)
    host = env.pool[0]
    env.pool = InstancePool(tuple(replace(host, index=i, rent_weight=price) for i, price in enumerate(prices)), True)
    results = replay(env, script)
    share = 600 / int(env.population.num_host_parameters()[0])
    paid = [charge + results[-1].episodes[i].episode_return for i, charge in enumerate((3 * share, 0.0, 20 * share))]
    assert env.settings.rent_weight == 3
    assert paid[1:] == pytest.approx(paid[:-1], abs=1e-9)
    for episode in results[-1].episodes:
        assert episode.episode_return == pytest.approx(phi(env, episode.environment, kept_only=True), abs=2e-4)
    again = small_env(experiment)
    again.pool = env.pool
    again.load_state_dict(env.state_dict())
    assert again.rents.tolist() == [3, 0, 20]


def test_half_alpha_pays_the_rent_of_full_alpha() -> None:
    env = one_host(small_env(small_experiment("env.num_epochs=8"), num_envs=2))
    half = action(Op.GERMINATE, slot=1, blueprint=CONV_LIGHT, alpha_target=AlphaTarget.HALF)
    keep = action(Op.FOSSILIZE, slot=1)
    script = [waits(2, e0=half, e1=GERMINATE), *[waits(2)] * 4, waits(2, e0=keep, e1=keep), *[waits(2)] * 2]
    results = replay(env, script)
    assert env.state.alpha[:, 1].tolist() == [0.5, 1.0]
    assert (env.state.stage[:, 1] == Stage.FOSSILIZED).all()
    charges = torch.stack([result.components["rent"] for result in results])
    assert torch.equal(charges[:, 0], charges[:, 1])
    host = int(env.population.num_host_parameters()[0])
    assert float(charges.sum(0)[0]) == pytest.approx(-env.settings.rent_weight * 600 / host)


def test_holding_for_ever_gains_nothing_that_the_bare_host_has_not() -> None:
    """At the end only FOSSILIZED modules are on, and only they are charged."""
    env = one_host(small_env(small_experiment("env.num_epochs=8"), num_envs=2))
    replay(env, [waits(2, e0=GERMINATE, e1=GERMINATE), *[waits(2)] * 6])
    env.population.modules[1, CONV_LIGHT].values.detach().mul_(20)  # so that nobody takes one network for the other
    result = env.step(waits(2, e1=action(Op.FOSSILIZE, slot=1)))
    holding, keeping = result.episodes
    instance = env.instances[0]
    assert env.rewarder.twins is not None
    last = float(env.rewarder.twins[instance].points[-1])
    weights = env.loader.data(instance).val_weight
    bare, with_module = (plain_network(env, environment, kept_only=True)[0] for environment in (0, 1))
    assert env.state.stage[:, 1].tolist() == [Stage.HOLDING, Stage.FOSSILIZED]
    assert not bare.attached
    images, labels = env.loader.task.val.inputs.double(), env.loader.task.val.targets
    for episode, network in ((holding, bare), (keeping, with_module)):
        hits = (network(images).argmax(dim=1) == labels).float() * weights
        assert episode.val_accuracy == pytest.approx(float(hits.sum() / weights.sum()), abs=1e-6)
    assert holding.val_accuracy != keeping.val_accuracy == float(result.accuracy[0])
    expected = plain_points(bare, env.loader.task.val, weights) - last
    assert holding.episode_return == pytest.approx(expected, abs=1e-4)
    assert (holding.added_parameters, holding.num_fossilized) == (0, 0)
    rent = env.settings.rent_weight * 600 / int(env.population.num_host_parameters()[1])
    expected = plain_points(with_module, env.loader.task.val, weights) - last - rent
    assert keeping.episode_return == pytest.approx(expected, abs=1e-4)
    assert (keeping.added_parameters, keeping.num_fossilized) == (600, 1)
