"""A price of training FLOPs: charged against the never-grown twin, telescoping, and cheaper only by computing less."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers import Eager, action, small_env, small_experiment, undone, waits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.records import EpisodeRecord, StepResult
from esper.envs.rewards import RewardFamily, compute_component, paired_reward, points_score, register_reward, total
from esper.growth import Stage
from esper.growth.actions import AlphaSpeed, AlphaTarget, Op
from esper.runtime.user_code import UsersCodeError

LIGHT, SLOT, EPOCHS, WEIGHT = 1, 1, 8, 5.0


def play(env: GrowthEnv, poisoned: int | None = None) -> tuple[list[StepResult], list[EpisodeRecord]]:
    """Grow at random for one episode, start anew where a host crashed, and break one host in its fourth epoch."""
    observation, chooser = env.reset(), Eager(4)
    results: list[StepResult] = []
    for epoch in range(env.num_epochs):
        if epoch == 3 and poisoned is not None:
            env.population.hosts.values.detach()[poisoned, 3] = torch.nan
        results.append(env.step(chooser.act(env.view(observation))))
        observation = results[-1].observation
        if results[-1].terminated.any() and epoch + 1 < env.num_epochs:
            observation = env.reset(results[-1].terminated)
    return results, [episode for result in results for episode in result.episodes]


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_an_episode_is_charged_for_what_it_computed_and_nothing_else_changes(gamma: float) -> None:
    """With a crash and modules in all stages: the price changes the return by it times the FLOPs beyond the twin's."""
    experiment = small_experiment("slots.max_seeds=2", "slots.incubate_every=2", "env.steps_per_epoch=3")
    free, priced = (small_env(experiment, num_envs=4, gamma=gamma, compute_weight=weight) for weight in (0.0, WEIGHT))
    (before, cheap), (after, dear) = (play(env, poisoned=2) for env in (free, priced))
    for ours, theirs in zip(before, after, strict=True):
        assert set(theirs.components) - set(ours.components) == {"compute"}
        assert all(torch.equal(part, theirs.components[name]) for name, part in ours.components.items())
        assert torch.equal(ours.observation.features, theirs.observation.features)
    assert [episode.crashed for episode in cheap] == [True] + [False] * 3
    assert min(episode.relative_flops for episode in dear) > 1
    for ours, theirs in zip(cheap, dear, strict=True):
        length = theirs.num_epochs
        spent = (theirs.relative_flops - 1) * length / priced.num_epochs
        charge = gamma ** (length - 1) * WEIGHT * spent
        assert ours.episode_return - theirs.episode_return == pytest.approx(charge, abs=1e-9)


def test_never_growing_costs_nothing_to_the_bit_even_where_the_host_crashes() -> None:
    env = small_env(small_experiment(), gamma=0.9, compute_weight=1e6)
    env.reset()
    for epoch in range(env.num_epochs):
        if epoch == 4:
            env.population.hosts.values.detach()[0, 3] = torch.nan
        result = env.step(waits(3))
        assert result.components["compute"].tolist() == [0.0] * 3
        assert total(result.components)[1:].tolist() == [0.0] * 2
        if epoch + 1 < env.num_epochs and result.terminated.any():
            env.reset(result.terminated)


@pytest.mark.slow
def test_the_return_on_test_images_is_charged_alike() -> None:
    experiment = small_experiment("env.mapping=grouped")
    envs = [small_env(experiment, measure_test=True, compute_weight=weight) for weight in (0.0, WEIGHT)]
    episodes = [play(env)[1] for env in envs]
    for free, priced in zip(*episodes, strict=True):
        assert free.test_return is not None
        assert priced.test_return is not None
        charge = WEIGHT * (priced.relative_flops - 1)
        assert free.test_return - priced.test_return == pytest.approx(charge, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    spent=st.lists(st.floats(0, 50), min_size=1, max_size=12),
    gamma=st.sampled_from([1.0, 0.97, 0.5]),
    weight=st.floats(0, 100),
)
def test_charges_telescope(spent: list[float], gamma: float, weight: float) -> None:
    at = [torch.tensor([sum(spent[:length])], dtype=torch.float64) for length in range(len(spent) + 1)]
    last = len(spent) - 1
    paid = sum(
        gamma**t * float(compute_component(at[t], at[t + 1], torch.tensor([t == last]), weight=weight, gamma=gamma))
        for t in range(len(spent))
    )
    assert paid == pytest.approx(-(gamma**last) * weight * float(at[-1]), rel=1e-9, abs=1e-9)


# ------------------------------------------------------------------------------------------------------------- cheats

GERMINATE = action(Op.GERMINATE, slot=SLOT, blueprint=LIGHT, alpha_target=AlphaTarget.FULL)
HALF = action(Op.GERMINATE, slot=SLOT, blueprint=LIGHT, alpha_target=AlphaTarget.HALF)
CULL = action(Op.CULL, slot=SLOT, alpha_speed=AlphaSpeed.INSTANT)
KEEP, WAIT, EXTEND = action(Op.FOSSILIZE, slot=SLOT), action(Op.WAIT), action(Op.EXTEND, slot=SLOT)

SCRIPTS: dict[str, list[Tensor]] = {
    "never": [WAIT] * EPOCHS,
    "keep": [GERMINATE, *[WAIT] * 5, KEEP, WAIT],
    "half": [HALF, *[WAIT] * 5, KEEP, WAIT],
    "hold": [GERMINATE, *[WAIT] * 7],
    "cull_at_the_end": [GERMINATE, *[WAIT] * 6, CULL],
    "cull_at_once": [GERMINATE, CULL, *[WAIT] * 6],
    "incubate": [GERMINATE, *[EXTEND] * 7],
    "last_minute": [*[WAIT] * 7, GERMINATE],
    "crash": [GERMINATE, *[WAIT] * 7],
}


@cache
def charged() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Points taken in each epoch from each script on one and the same host, and multiply-adds of each epoch beyond the
    host's own, relative to the host's whole episode.
    """
    experiment = small_experiment(f"env.num_epochs={EPOCHS}", "slots.min_training_epochs=2")
    env = small_env(experiment, num_envs=len(SCRIPTS), compute_weight=WEIGHT)
    env.pool = InstancePool(env.pool.instances[:1])
    env.reset()
    taken: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    spent: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    host, over = env.costs.host_step, torch.zeros(len(SCRIPTS)).bool()
    for epoch in range(EPOCHS):
        if epoch == 5:
            env.population.hosts.values.detach()[list(SCRIPTS).index("crash"), 3] = torch.nan
        before = env.episodes.trained.clone()
        rows = [WAIT if done else script[epoch] for script, done in zip(SCRIPTS.values(), over, strict=True)]
        result = env.step(torch.stack(rows))
        assert result.applied.success.all()
        for number, name in enumerate(SCRIPTS):
            if not over[number]:
                taken[name].append(-float(result.components["compute"][number]))
                spent[name].append(float(env.episodes.trained[number] - before[number] - host) / (host * EPOCHS))
        if epoch == 5:
            assert env.state.stage[[1, 3, 5], SLOT].tolist() == [Stage.HOLDING, Stage.HOLDING, Stage.DORMANT]
        over |= result.terminated
        if epoch + 1 < EPOCHS and result.terminated.any():
            env.reset(result.terminated)
    return taken, spent


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_epoch_is_charged_for_what_it_computed_and_nothing_is_given_back(name: str) -> None:
    """Neither by a cull, nor at the end, nor by a crash; the next episode starts anew."""
    taken, spent = charged()
    assert taken[name] == pytest.approx([WEIGHT * each for each in spent[name]], abs=1e-12)
    assert min(taken[name]) >= -1e-12
    assert len(taken[name]) == (6 if name == "crash" else EPOCHS)


def test_who_computes_more_is_charged_more() -> None:
    """Looking has its price; a module at half alpha computes as much as one at full alpha."""
    sums = {name: sum(each) for name, each in charged()[0].items()}
    assert sums["never"] == 0
    assert 0 < sums["last_minute"] == pytest.approx(sums["cull_at_once"])
    assert sums["cull_at_once"] < sums["cull_at_the_end"] < sums["hold"] == pytest.approx(sums["keep"])
    assert sums["half"] == sums["keep"]
    assert sums["incubate"] > sums["keep"], "a pass of its own through the rest of the host costs more"
    assert sums["crash"] == pytest.approx(sum(charged()[0]["hold"][:6]))


@pytest.mark.slow
def test_resting_modules_are_looked_at_for_less() -> None:
    prices = []
    for every in (1, 2, 4):
        experiment = small_experiment("env.num_epochs=2", "env.steps_per_epoch=4", f"slots.incubate_every={every}")
        env = small_env(experiment, compute_weight=WEIGHT)
        env.reset()
        prices.append(-float(env.step(waits(3, e0=GERMINATE)).components["compute"][0]))
    assert prices[0] > 0
    assert prices[1:] == pytest.approx([prices[0] / 2, prices[0] / 4])


def test_a_users_component_of_that_name_is_refused_in_one_line() -> None:
    def step(*measured: object, **numbers: object) -> tuple[object, dict[str, Tensor]]:
        potential, components = paired_reward(*measured, **numbers)  # type: ignore[arg-type]
        return potential, components | {"compute": torch.zeros(3, dtype=torch.float64)}

    with undone():
        register_reward("own_compute", RewardFamily(score=points_score, step=step))  # type: ignore[arg-type]
        env = small_env(small_experiment("reward.family=own_compute"), compute_weight=WEIGHT)
        env.reset()
        with pytest.raises(UsersCodeError, match=r"the component 'compute' is that of reward.compute_weight"):
            env.step(waits(3))
