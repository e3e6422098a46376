"""Loading of instances: host parameters at birth, and samples for training, validation and test.

Axis legend: E = environments, P = host parameters, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from esper.envs.instances import Instance, InstanceData, first_data, instance_data
from esper.hosts import SegmentedHost, fault_mask
from esper.population import Population, Samples
from esper.population.layout import flatten_parameters
from esper.runtime.rng import generator
from esper.tasks import TaskData, epoch_indices
from esper.tasks.augment import Augmentation
from esper.tasks.batches import TrainingSamples
from esper.tasks.data import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraining:
    """Training settings of every host, grown or not.

    Attributes:
        num_epochs: epochs of an episode.
        steps_per_epoch: minibatches per epoch.
        batch_size: samples per minibatch.
        lr: learning rate of hosts and modules, before a family's factor.
        max_grad_norm: gradient clip per (environment, owner); 0 is off.
        alive_channels: channels that a starved block keeps.
        augmentation: augmentation of training images.
    """

    num_epochs: int
    steps_per_epoch: int
    batch_size: int
    lr: float
    max_grad_norm: float
    alive_channels: int
    augmentation: Augmentation


_Key: TypeAlias = Instance | tuple[int, ...] | None
"""Key of an instance's whole data: the instance if samples or labels are drawn, otherwise its classes."""


class InstanceLoader:
    """Loader of instances into a population: hosts at birth, each with its own samples and data order."""

    def __init__(self, task: TaskData, host: SegmentedHost, training: HostTraining) -> None:
        self.task = task
        self.training = training
        self._host = copy.deepcopy(host)
        self._data: dict[_Key, InstanceData] = {}
        self._first_data: dict[tuple[_Key, tuple[int, ...] | None], InstanceData] = {}

    def place(self, population: Population, environments: Sequence[int], instances: Sequence[Instance]) -> None:
        """Initialise the hosts of some instances in some environments."""
        values, live = zip(*(self._newborn(instance) for instance in instances), strict=True)
        population.reset(environments, torch.stack(values), torch.stack(live))

    def order(self, instances: Sequence[Instance], epochs: Iterable[int]) -> Tensor:
        """Draw the data order of each environment's next epoch from its instance's own random streams.

        Returns:
            Sample indices ``int64 [E, steps * B]`` on the CPU; with augmentation ``[E, steps * B, 6]``, an index and
            five draws.
        """
        return torch.stack([self._epoch(instance, epoch) for instance, epoch in zip(instances, epochs, strict=True)])

    def _epoch(self, instance: Instance, epoch: int) -> Tensor:
        """Return one row of :meth:`order`."""
        count, augmentation = self.training.steps_per_epoch * self.training.batch_size, self.training.augmentation
        samples = epoch_indices(self.data(instance, epoch).train_pool, count, instance.order_seed, epoch)
        if not augmentation.active:
            return samples
        draws = augmentation.draw(count, self.task.image_size, instance.order_seed, epoch)
        return torch.cat([samples[:, None], draws], dim=1)

    def train(self, instances: Sequence[Instance]) -> TrainingSamples:
        """Return the training samples of some instances, with the labels of each."""
        told = [self.data(instance).train_targets for instance in instances]
        train = self.task.train
        own = any(targets is not train.targets for targets in told)
        return TrainingSamples(
            train.inputs,
            torch.stack(told) if own else train.targets,
            own_targets=own,
            prepare=self.task.prepare,
            augmentation=self.training.augmentation if self.training.augmentation.active else None,
        )

    def first_batch(
        self, instances: Sequence[Instance], epochs: Iterable[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the first minibatch of each environment's next epoch: inputs ``[E, B, ...]`` and targets."""
        index = self.order(instances, epochs)[:, : self.training.batch_size].to(device, non_blocking=True)
        return self.train(instances).batch(index)

    def lr(self, instances: Sequence[Instance]) -> float | Tensor:
        """Return the learning rate of hosts and modules: a single one, or ``float64 [E]`` if they differ."""
        factors = [instance.faults.lr_factor for instance in instances]
        if all(factor == 1 for factor in factors):
            return self.training.lr
        return self.training.lr * torch.tensor(factors, dtype=torch.float64)

    def val(self, instances: Sequence[Instance], epochs: Iterable[int] | None = None) -> Samples:
        """Return the validation samples of some instances after these epochs, or after their last one."""
        when = [None] * len(instances) if epochs is None else epochs
        found = [self.data(instance, epoch) for instance, epoch in zip(instances, when, strict=True)]
        return self._samples(self.task.val, [data.val_weight for data in found])

    def test(self, instances: Sequence[Instance]) -> Samples:
        """Return the test samples of some instances, for final scores only."""
        return self._samples(self.task.test, [self.data(instance).test_weight for instance in instances])

    def data(self, instance: Instance, epoch: int | None = None) -> InstanceData:
        """Return the instance's part of the task in an epoch, counted from 0, or in its last one."""
        drawn = instance.data_fraction < 1 or instance.label_noise_rate > 0
        key = instance if drawn else instance.classes
        if key not in self._data:
            self._data[key] = instance_data(self.task, instance)
        whole = self._data[key]
        if epoch is None or epoch >= instance.arrival:
            return whole
        first = key, instance.first_classes
        if first not in self._first_data:
            self._first_data[first] = first_data(self.task, instance, whole)
        return self._first_data[first]

    def _samples(self, split: Split, weights: Sequence[Tensor]) -> Samples:
        return Samples(
            inputs=split.inputs, targets=split.targets, weights=torch.stack(list(weights)), prepare=self.task.prepare
        )

    def _newborn(self, instance: Instance) -> tuple[Tensor, Tensor]:
        """Return host parameters ``[P]`` and their mask ``bool [P]``."""
        self._host.reset(generator("host", instance.host_seed))
        mask = fault_mask(self._host, instance.family, self.training.alive_channels)
        live = torch.cat([mask[name].flatten() for name, _ in self._host.named_host_parameters()])
        return flatten_parameters(self._host.segments), live
