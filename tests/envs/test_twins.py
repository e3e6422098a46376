"""Never-grown twins against a plain training loop, and their cache."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from helpers import mask_host, plain_points, small_experiment
from torch import nn

from esper.envs import twins as twins_module
from esper.envs.instances import Instance, InstancePool
from esper.envs.twins import TwinCache
from esper.experiment.build import Experiment
from esper.hosts import SegmentedHost, fault_mask, reset_parameters
from esper.population import MAPPINGS, GrowthStage
from esper.population.stack import adam_step
from esper.population.training import part_gradients, plan_training
from esper.runtime.rng import generator
from esper.tasks import epoch_indices
from tests.tiers import few

FAMILIES = ("intact", "starved_1", "centre_tap_12", "few_classes")
OTHER_FAMILIES = ("narrow_4", "few_samples", "label_noise", "starved_0+label_noise+lr_times_3")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("env.num_epochs=4")


@pytest.fixture(scope="module")
def pool(experiment: Experiment) -> InstancePool:
    return pool_of(FAMILIES)


def pool_of(families: tuple[str, ...]) -> InstancePool:
    """Make a pool with one instance of each family."""
    weights = dict.fromkeys(families, 1.0)
    return InstancePool.build(
        weights, len(families), "train", host_family="cnn", num_blocks=3, num_classes=10, num_few_classes=3
    )


def cache(experiment: Experiment, num_envs: int) -> TwinCache:
    return TwinCache(experiment.loader, lambda: experiment.population(num_envs))


def train_alone(experiment: Experiment, instance: Instance) -> list[tuple[float, SegmentedHost]]:
    """Return points after each epoch of one host in a plain training loop with torch's Adam, without a population."""
    task, training = experiment.task, experiment.loader.training
    host = copy.deepcopy(experiment.host)
    reset_parameters(host.segments, generator("host", instance.host_seed))
    mask = fault_mask(host, instance.family, training.alive_channels)
    mask_host(host, mask)
    optimizer = torch.optim.Adam(host.parameters(), lr=training.lr * instance.faults.lr_factor)
    data = experiment.loader.data(instance)
    points = []
    for epoch in range(training.num_epochs):
        count = training.steps_per_epoch * training.batch_size
        for batch in epoch_indices(data.train_pool, count, instance.order_seed, epoch).split(training.batch_size):
            loss = nn.functional.cross_entropy(host(task.train.inputs[batch]), data.train_targets[batch])
            optimizer.zero_grad()
            loss.backward()
            for name, parameter in host.named_host_parameters():
                assert parameter.grad is not None
                parameter.grad.masked_fill_(~mask[name], 0.0)
            optimizer.step()
        points.append((plain_points(copy.deepcopy(host).double(), task.val, data.val_weight), host))
    return points


@pytest.mark.parametrize("mapping", sorted(MAPPINGS))
@pytest.mark.parametrize("families", [FAMILIES, OTHER_FAMILIES], ids=["plain", "other"])
@few(3)
def test_a_twin_is_its_instance_trained_alone(mapping: str, families: tuple[str, ...]) -> None:
    """Every family: init, missing weights, data, order, optimizer and score, within rounding."""
    experiment, pool = small_experiment(f"env.mapping={mapping}", "env.num_epochs=4"), pool_of(families)
    twins = cache(experiment, num_envs=4)
    for instance in pool:
        alone = train_alone(experiment, instance)
        curve = twins[instance]
        assert curve.points.tolist() == pytest.approx([points for points, _ in alone], abs=1e-3), instance.family
        split, weights = experiment.task.test, experiment.loader.data(instance).test_weight
        with torch.no_grad():
            hits = alone[-1][1](split.inputs).argmax(dim=1) == split.targets
        assert curve.test_accuracy == pytest.approx(float((hits * weights).sum()), abs=1e-6)
        assert curve.points.std() > 0


def test_curves_do_not_depend_on_place_or_company(experiment: Experiment, pool: InstancePool) -> None:
    """Bit-equal for the same height of stack: else a controller that never grows would not earn exactly 0."""
    together, reversed_, alone = (cache(experiment, num_envs=4) for _ in range(3))
    together.require(pool)
    reversed_.require(list(pool)[::-1])
    alone.require(pool.instances[:1])  # places left over repeat it
    for instance in pool:
        for name in ("points", "loss", "accuracy"):
            assert torch.equal(getattr(together[instance], name), getattr(reversed_[instance], name))
    assert torch.equal(together[pool[0]].points, alone[pool[0]].points)


def test_every_curve_is_computed_once(experiment: Experiment, pool: InstancePool) -> None:
    made, progress = [], []
    twins = TwinCache(
        experiment.loader,
        lambda: made.append(1) or experiment.population(2),  # type: ignore[func-returns-value]
        lambda done, total: progress.append((done, total)),
    )
    twins.require([pool[0], pool[1], pool[0], pool[2]])
    assert progress == [(0, 3), (2, 3), (3, 3)]
    curve = twins[pool[1]]
    twins.require([pool[2], pool[1], pool[0]])
    assert twins[pool[1]] is curve
    assert len(made) == 1
    assert twins[replace(pool[1])] is curve, "an equal instance is the same instance"
    _ = twins[pool[3]]
    assert progress[3:] == [(0, 1), (1, 1)]


def test_curves_of_another_kind_of_device_are_computed_anew(
    experiment: Experiment, pool: InstancePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not equal to the bit to the hosts here, so that a never-grown host would earn something."""
    old, same, other = (cache(experiment, 2) for _ in range(3))
    old.require(pool.instances[:1])
    saved = old.state_dict()
    same.load_state_dict(saved)
    assert torch.equal(same[pool[0]].points, saved["curves"][0]["points"])
    saved["curves"][0]["points"].zero_()
    monkeypatch.setattr(twins_module, "device_name", lambda device: "another GPU")
    other.load_state_dict(saved)
    assert torch.equal(other[pool[0]].points, old[pool[0]].points)


def test_few_classes_are_scored_on_their_own_samples(experiment: Experiment, pool: InstancePool) -> None:
    [instance] = [instance for instance in pool if instance.family == "few_classes"]
    assert instance.classes is not None
    weights = experiment.loader.val([instance]).weights[0]
    chosen = torch.isin(experiment.task.val.targets, torch.tensor(instance.classes))
    assert torch.equal(weights > 0, chosen)
    seen = experiment.task.train.targets[experiment.loader.order([instance], [0])[0]]
    assert set(seen.tolist()) <= set(instance.classes)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("num_envs", [2, 4, 7])
@few(4)
def test_a_host_has_the_same_bits_wherever_it_stands(mapping: str, num_envs: int) -> None:
    """Twins stand at other places of their stack than environments do, and yet a host left alone earns exactly 0."""
    experiment = small_experiment(f"env.mapping={mapping}")
    population, task = experiment.population(num_envs), experiment.task
    [instance, *_] = experiment.pool("train", 2).instances
    experiment.loader.place(population, range(num_envs), [instance] * num_envs)
    no = torch.zeros_like(population.blueprint, dtype=torch.bool)
    plan = plan_training(population, GrowthStage(alpha=no.double(), developing=no, isolated=no), "auxiliary")
    stream, hosts = torch.Generator().manual_seed(0), population.hosts
    for _ in range(15):
        rows = torch.randint(len(task.train), (64,), generator=stream).expand(num_envs, -1)
        result = part_gradients(population, plan, task.train.inputs[rows], task.train.targets[rows], stacks=[hosts])
        adam_step([hosts], result.gradients, lr=0.01)
        for tensor in (result.loss, result.gradients[0], hosts.values.detach()):
            assert (tensor == tensor[0]).all()
