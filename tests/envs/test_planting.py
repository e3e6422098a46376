"""Planted modules: ordinary parts of the network, counted and charged like any other."""

from __future__ import annotations

import pytest
import torch
from helpers import plain_points, small_env, small_experiment, waits
from torch.nn.functional import cross_entropy

from esper.envs.growth import GrowthEnv
from esper.envs.records import PlantedModule, StepResult
from esper.experiment.build import Experiment
from esper.growth import Stage
from esper.growth.actions import OP_WAIT, Blueprint

PLAN: dict[int, list[PlantedModule]] = {
    0: [(0, Blueprint.CONV_LIGHT), (2, Blueprint.DEPTHWISE)],
    2: [(1, Blueprint.NORM)],
}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("env.num_epochs=4", "env.steps_per_epoch=2")


def wait_through(env: GrowthEnv) -> list[StepResult]:
    return [env.step(waits(env.num_envs)) for _ in range(env.num_epochs)]


def test_planting_nothing_is_never_growing_bit_for_bit(experiment: Experiment) -> None:
    bare, planted = small_env(experiment), small_env(experiment)
    first = bare.reset()
    planted.reset()
    assert torch.equal(planted.plant({}).features, first.features)
    for ours, theirs in zip(wait_through(planted), wait_through(bare), strict=True):
        assert torch.equal(ours.observation.features, theirs.observation.features)
        assert (ours.reward == 0).all()
        assert ours.episodes == theirs.episodes


def test_a_planted_host_leaves_its_neighbours_bit_equal(experiment: Experiment) -> None:
    bare, planted = small_env(experiment), small_env(experiment)
    bare.reset()
    planted.reset()
    planted.plant({1: [(1, Blueprint.CONV_HEAVY)]})
    for ours, theirs in zip(wait_through(planted), wait_through(bare), strict=True):
        assert torch.equal(ours.observation.features[[0, 2]], theirs.observation.features[[0, 2]])
        assert not torch.equal(ours.observation.features[1], theirs.observation.features[1])


def test_a_planted_network_is_a_static_one_trained_by_torch_alone(experiment: Experiment) -> None:
    env = small_env(experiment, families=["intact"])
    env.reset()
    env.plant(PLAN)
    training, task = env.loader.training, env.loader.task
    networks = [env.population.grown(number, env.state.alpha[number].tolist()) for number in range(3)]
    assert [len(network.attached) for network in networks] == [2, 0, 1]
    for number, network in enumerate(networks):
        optimizer = torch.optim.Adam(network.parameters(), lr=training.lr)
        for epoch in range(env.num_epochs):
            order = env.loader.order([env.instances[number]], [epoch])[0]
            for batch in order.chunk(training.steps_per_epoch):
                optimizer.zero_grad()
                cross_entropy(network(task.train.inputs[batch]), task.train.targets[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    wait_through(env)
    for number, network in enumerate(networks):
        ours = dict(env.population.grown(number, env.state.alpha[number].tolist()).named_parameters())
        assert ours.keys() == dict(network.named_parameters()).keys()
        for name, value in network.named_parameters():
            # Adam divides by the root of tiny second moments: rounding shows where a gradient is almost zero.
            assert torch.allclose(ours[name], value, rtol=1e-5, atol=1e-5), (number, name)


def test_returns_telescope_to_the_final_score_over_the_twin_minus_rent(experiment: Experiment) -> None:
    env = small_env(experiment, rent_weight=3.0)
    env.reset()
    env.plant(PLAN)
    results = wait_through(env)
    episodes = results[-1].episodes
    assert env.rewarder.twins is not None
    for number, episode in enumerate(episodes):
        network = env.population.grown(number, env.state.alpha[number].tolist()).double()
        added = sum(parameter.numel() for module in network.attached.values() for parameter in module.parameters())
        weights = env.loader.data(env.instances[number]).val_weight
        score = plain_points(network, env.loader.task.val, weights)
        twin = float(env.rewarder.twins[env.instances[number]].points[-1])
        rent = 3.0 * added / int(env.population.num_host_parameters()[number])
        paid = sum(float(sum(result.components.values())[number]) for result in results)  # type: ignore[index]
        assert episode.added_parameters == added
        assert episode.episode_return == pytest.approx(paid)
        assert episode.episode_return == pytest.approx(score - twin - rent, abs=1e-3)
    assert episodes[1].episode_return == 0


def test_planted_modules_are_part_of_the_host(experiment: Experiment) -> None:
    """More of them than ``slots.max_seeds`` allows a controller to keep: nothing is left to decide about them."""
    env = small_env(experiment, measure_test=True)
    assert env.rules.max_seeds == 1
    env.reset()
    observation = env.plant(PLAN)
    assert (env.state.stage == Stage.FOSSILIZED).sum(dim=1).tolist() == [2, 0, 1]
    assert env.state.num_parameters[0].tolist() == [600, 0, 160]
    assert observation.masks.op.sum(dim=1).tolist() == [1, 2, 1], "WAIT, and GERMINATE in the empty host"
    assert observation.masks.op[:, OP_WAIT].all()
    episodes = wait_through(env)[-1].episodes
    assert [episode.kept for episode in episodes] == [
        (("r0c0", "conv_light"), ("r0c2", "depthwise")),
        (),
        (("r0c1", "norm"),),
    ]
    assert (
        [episode.num_fossilized for episode in episodes]
        == [episode.num_germinated for episode in episodes]
        == [2, 0, 1]
    )
    host, module = experiment.costs.host, experiment.costs.module
    added = int(module[0, Blueprint.CONV_LIGHT] + module[2, Blueprint.DEPTHWISE])
    assert [episode.relative_flops for episode in episodes] == pytest.approx([(host + added) / host, 1, 1])
    assert env.reset().features.isfinite().all()
    assert (env.state.stage == Stage.DORMANT).all()


def test_planting_the_same_is_the_same_and_births_follow_the_instance(experiment: Experiment) -> None:
    values = []
    for _ in range(2):
        env = small_env(experiment)
        env.reset()
        env.plant(PLAN)
        values.append(env.population.modules[0, Blueprint.CONV_LIGHT].values.detach().clone())
    assert torch.equal(*values)


def test_a_blueprint_that_does_not_fit_is_refused(experiment: Experiment) -> None:
    env = small_env(experiment)
    env.reset()
    with pytest.raises(ValueError, match=r"blueprint lora does not fit slot r0c1"):
        env.plant({0: [(1, Blueprint.LORA)]})
    with pytest.raises(ValueError, match=r"slot r0c0 of environment 1 already has a module"):
        env.plant({1: [(0, Blueprint.NORM), (0, Blueprint.NORM)]})
