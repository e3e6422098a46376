"""Arrival of classes: what a host has before and after, for training, validation and its twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import replay, small_env, small_experiment, waits
from torch import Tensor

from esper.config import Config, compose
from esper.config.growth import ArrivalConfig, EnvConfig, InstancesConfig
from esper.controllers.base import germinate
from esper.envs.arrivals import Arrivals
from esper.envs.growth import GrowthEnv
from esper.envs.instances import SPLITS, Instance, InstancePool, first_data, instance_data
from esper.experiment.build import Experiment, arrivals
from esper.experiment.preflight import preflight
from esper.growth.actions import Blueprint

SOON = ("env.num_epochs=6", "instances.arrival.classes=3", "instances.arrival.earliest=0.3")
SHAPE = {"host_family": "cnn", "num_blocks": 3, "num_classes": 10}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment(*SOON, "env.mapping=grouped")


def pool(split: str = "train", count: int = 40, **changes: object) -> InstancePool:
    drawn = Arrivals(num_first=3, earliest=4, latest=9)
    settings = {"arrivals": drawn, **SHAPE, **changes}
    return InstancePool.build({"intact": 1.0}, count, split, **settings)  # type: ignore[arg-type]


def first_labels(experiment: Experiment, instance: Instance, epoch: int) -> set[int]:
    """Return the labels that a host is trained on in an epoch."""
    [samples] = experiment.loader.order([instance], [epoch])
    return set(experiment.loader.data(instance).train_targets[samples].tolist())


def test_every_host_draws_its_own_epoch_and_classes_and_nothing_else_changes() -> None:
    for split in SPLITS:
        drawn = pool(split)
        assert {instance.arrival for instance in drawn} == set(range(4, 10)), "each possible epoch, and no other"
        firsts = [instance.first_classes or () for instance in drawn]
        assert all(sorted(set(first)) == list(first) and len(first) == 3 for first in firsts)
        assert set().union(*firsts) == set(range(10))
        assert list(pool(split)) == list(drawn), "the same whenever it is asked for"
        bare = [replace(instance, arrival=0, first_classes=None) for instance in drawn]
        assert bare == list(pool(split, arrivals=None))
    at = [[(instance.arrival, instance.first_classes) for instance in pool(split)] for split in SPLITS]
    assert at[0] != at[1] != at[2] != at[0], "splits have streams of their own"


def test_the_first_classes_are_some_of_those_that_a_host_has() -> None:
    drawn = InstancePool.build(
        {"few_classes": 1.0},
        20,
        "train",
        arrivals=Arrivals(num_first=2, earliest=0, latest=3),
        num_few_classes=4,
        **SHAPE,
    )  # type: ignore[arg-type]
    assert all(set(instance.first_classes or ()) < set(instance.classes or ()) for instance in drawn)
    with pytest.raises(ValueError, match=r"arrival.classes=4 leaves none of 4 classes to arrive: choose at most 3"):
        Arrivals(num_first=4, earliest=0, latest=3).draw(range(4), "any")


@pytest.mark.parametrize(
    ("earliest", "latest", "found"), [(0.25, 0.75, (10, 30)), (0, 1, (0, 39)), (0.26, 0.26, (10, 10))]
)
def test_shares_of_the_episode_become_epochs_before_its_end(
    earliest: float, latest: float, found: tuple[int, int]
) -> None:
    arrival = ArrivalConfig(classes=3, earliest=earliest, latest=latest)
    config = Config(env=EnvConfig(num_epochs=40), instances=InstancesConfig(arrival=arrival))
    drawn = arrivals(config)
    assert drawn is not None
    assert (drawn.num_first, drawn.earliest, drawn.latest) == (3, *found)
    arrival.classes = None
    assert arrivals(config) is None


def test_no_sample_of_a_late_class_is_trained_on_before_it_arrives(experiment: Experiment) -> None:
    for instance in experiment.pool("train", 8):
        assert 0 < instance.arrival < 6
        for epoch in range(6):
            first = set(instance.first_classes or ())
            labels = first_labels(experiment, instance, epoch)
            assert labels <= first if epoch < instance.arrival else labels - first


def test_wrong_labels_name_no_class_that_is_not_there(experiment: Experiment) -> None:
    instance = replace(experiment.pool("train", 1)[0], family="label_noise", label_noise_rate=0.5)
    first = set(instance.first_classes or ())
    [samples] = experiment.loader.order([instance], [0])
    assert first_labels(experiment, instance, 0) <= first
    assert set(experiment.task.train.targets[samples].tolist()) <= first
    assert first_labels(experiment, instance, instance.arrival) - first


def test_scores_are_of_the_classes_that_are_there_and_test_of_all(experiment: Experiment) -> None:
    task, loader = experiment.task, experiment.loader
    one, other = experiment.pool("train", 2)
    before, after = loader.val([one, other], [one.arrival - 1, other.arrival]).weights
    there = torch.isin(task.val.targets, torch.tensor(one.first_classes))
    assert torch.equal(before, there / there.sum())
    assert torch.equal(after, torch.full_like(after, 1 / len(after)))
    for whole in (loader.val([one]).weights, loader.test([one]).weights):
        assert whole.min() > 0


def complete(env: GrowthEnv) -> Tensor:
    """Return which environments have samples of all classes in validation, after a step."""
    assert env._val is not None
    return env._val.weights.min(dim=1).values > 0


@pytest.mark.parametrize("mapping", ["grouped", pytest.param("loop", marks=pytest.mark.slow)])
def test_never_growing_earns_nothing_before_during_and_after_the_arrival(mapping: str) -> None:
    env = small_env(small_experiment(*SOON, f"env.mapping={mapping}"))
    env.reset()
    for epoch in range(env.num_epochs):
        step = env.step(waits(3))
        assert step.reward.tolist() == [0.0] * 3
        arrived = [instance.arrival <= epoch for instance in env.instances]
        assert complete(env).tolist() == arrived
        twins = [env.rewarder.twins[instance] for instance in env.instances]  # type: ignore[index]
        assert step.accuracy.tolist() == [float(twin.accuracy[epoch]) for twin in twins]
    assert len({instance.arrival for instance in env.instances}) > 1, "they do not arrive together"


def test_an_environment_restored_before_the_arrival_goes_on_as_if_it_had_not_stopped(experiment: Experiment) -> None:
    def script(env: GrowthEnv) -> list[Tensor]:
        first = waits(3)
        first[0] = germinate(1, Blueprint.CONV_LIGHT)
        return [first, *(waits(3) for _ in range(env.num_epochs - 1))]

    whole, start, resumed = (small_env(experiment) for _ in range(3))
    actions = script(whole)
    expected = replay(whole, actions)
    resumed.reset()
    start.reset()
    for epoch, action in enumerate(actions[:-1]):
        start.step(action)
        if epoch + 1 not in {instance.arrival for instance in start.instances}:
            continue
        resumed.load_state_dict(start.state_dict())
        step = resumed.step(actions[epoch + 1])
        assert torch.equal(step.reward, expected[epoch + 1].reward)
        assert torch.equal(step.observation.features, expected[epoch + 1].observation.features)


def test_the_observation_tells_nothing_of_the_arrival_before_it(experiment: Experiment) -> None:
    """Two hosts alike but for the epoch of arrival look alike until the earlier one."""
    env = small_env(experiment)
    one = experiment.pool("train", 1)[0]
    env.pool = InstancePool(tuple(replace(one, index=i, arrival=2 + i) for i in range(3)), assigned=True)
    features = [env.reset().features, *(env.step(waits(3)).observation.features for _ in range(4))]
    for seen in features[:3]:
        assert torch.equal(seen[0], seen[1])
    assert not torch.equal(features[3][0], features[3][1])
    assert torch.equal(features[3][1], features[3][2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"classes": 1}, "instances.arrival.classes must be at least 2, got 1"),
        ({"earliest": 1.5}, "instances.arrival.earliest must be between 0 and 1, got 1.5"),
        (
            {"earliest": 0.8},
            r"instances.arrival.earliest must be at most 0.75 \(instances.arrival.latest\), got 0.8",
        ),
    ],
)
def test_values_out_of_range_are_refused(words: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArrivalConfig(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["instances.arrival.classes=4"], "arrival.classes=4 leaves none of 4 classes to arrive: choose at most 3"),
        (
            ["task=textbook", "host=textbook", "task.max_samples=4", "instances.arrival.classes=4"],
            "instances.arrival.classes=4 is about classes of images; textbook has text",
        ),
    ],
)
def test_what_cannot_arrive_is_refused_before_a_run(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(compose("+instances.families={few_classes: 1}" if len(words) == 1 else "seed=0", *words))


def test_first_classes_without_samples_are_named(experiment: Experiment) -> None:
    instance = experiment.pool("train", 1)[0]
    task = experiment.task
    absent = replace(task, train=replace(task.train, targets=torch.full_like(task.train.targets, 9)))
    instance = replace(instance, first_classes=(2, 4))
    message = "instances.arrival.classes=2: train of task digits has no sample of classes 2, 4, the first ones of train"
    with pytest.raises(ValueError, match=message):
        first_data(absent, instance, instance_data(absent, instance))
