"""Hosts of instances: their parameters at birth, their data, and how they do when nothing ever grows.

Axis legend: E = environments, P = host parameters, T = epochs, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from esper.envs.breakdowns import Breakdown, as_guessing, breakdowns
from esper.envs.instances import Instance, InstanceData, instance_data
from esper.hosts import SegmentedHost, fault_mask
from esper.population import GrowthStage, Population, Samples, evaluate, train_epoch
from esper.population.layout import flatten_parameters
from esper.runtime.devices import device_name
from esper.runtime.ranks import Ranks
from esper.runtime.rng import generator
from esper.runtime.state import State, plain_fields
from esper.tasks import TaskData, epoch_indices
from esper.tasks.augment import NO_AUGMENTATION, Augmentation
from esper.tasks.batches import take_inputs, take_targets, told_apart
from esper.tasks.data import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraining:
    """How every host is trained, grown or not.

    Attributes:
        num_epochs: epochs of an episode.
        steps_per_epoch: minibatches per epoch.
        batch_size: samples per minibatch.
        lr: learning rate of hosts and modules, but for a family's factor on it.
        max_grad_norm: gradient clip per (environment, owner); 0 is off.
        alive_channels: channels that a starved block keeps.
        augmentation: of training images.
    """

    num_epochs: int
    steps_per_epoch: int
    batch_size: int
    lr: float
    max_grad_norm: float = 0.0
    alive_channels: int = 2
    augmentation: Augmentation = NO_AUGMENTATION


class Nursery:
    """Brings instances into a population: hosts at birth, each with its own samples and data order."""

    def __init__(self, task: TaskData, host: SegmentedHost, training: HostTraining) -> None:
        self.task = task
        self.training = training
        self._host = copy.deepcopy(host)
        self._data: dict[Instance | tuple[int, ...] | None, InstanceData] = {}

    def place(self, population: Population, environments: Sequence[int], instances: Sequence[Instance]) -> None:
        """Start the hosts of some instances in some environments."""
        values, live = zip(*(self._birth(instance) for instance in instances), strict=True)
        population.reset(environments, torch.stack(values), torch.stack(live))

    def order(self, instances: Sequence[Instance], epochs: Iterable[int]) -> Tensor:
        """What each environment's next epoch is made of, from the instance's own streams.

        Returns:
            Samples ``int64 [E, steps * B]``; with augmentation ``[E, steps * B, 6]``, and what becomes of each.
        """
        return torch.stack([self._epoch(instance, epoch) for instance, epoch in zip(instances, epochs, strict=True)])

    def _epoch(self, instance: Instance, epoch: int) -> Tensor:
        """One row of :meth:`order`."""
        count, augmentation = self.training.steps_per_epoch * self.training.batch_size, self.training.augmentation
        samples = epoch_indices(self.data(instance).train_pool, count, instance.order_seed, epoch)
        if not augmentation.active:
            return samples
        draws = augmentation.draw(count, self.task.image_size, instance.order_seed, epoch)
        return torch.cat([samples[:, None], draws.to(samples.device)], dim=1)

    def take(self, inputs: Tensor, index: Tensor) -> Tensor:
        """What hosts read in a minibatch of an :meth:`order`: inputs ``[N, ...]`` gathered, augmented and prepared."""
        augmentation, prepare = self.training.augmentation, self.task.prepare
        if not augmentation.active:
            return prepare(take_inputs(inputs, index))
        samples, draws = index[..., 0], index[..., 1:]
        return augmentation.blank(prepare(augmentation.take(inputs, samples, draws)), draws)

    def first_batch(
        self, instances: Sequence[Instance], epochs: Iterable[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """The first minibatch of each environment's next epoch: what hosts read ``[E, B, ...]`` and are told."""
        index = self.order(instances, epochs)[:, : self.training.batch_size].to(device)
        inputs, targets = self.task.train.inputs, self.train_targets(instances)
        return self.take(inputs, index), take_targets(targets, index, own=told_apart(inputs, targets))

    def train_targets(self, instances: Sequence[Instance]) -> Tensor:
        """What :func:`esper.population.train_epoch` takes: one ``[N, ...]`` for all, ``[E, N]`` if any is noisy."""
        targets = [self.data(instance).train_targets for instance in instances]
        own = self.task.train.targets
        return own if all(each is own for each in targets) else torch.stack(targets)

    def lr(self, instances: Sequence[Instance]) -> float | Tensor:
        """Learning rate of hosts and modules: one for all, ``float64 [E]`` if any differs."""
        factors = [instance.faults.lr_factor for instance in instances]
        if all(factor == 1 for factor in factors):
            return self.training.lr
        return self.training.lr * torch.tensor(factors, dtype=torch.float64)

    def val(self, instances: Sequence[Instance]) -> Samples:
        """Validation samples of some instances."""
        return self._samples(self.task.val, [self.data(instance).val_weight for instance in instances])

    def test(self, instances: Sequence[Instance]) -> Samples:
        """Test samples of some instances: for final scores only."""
        return self._samples(self.task.test, [self.data(instance).test_weight for instance in instances])

    def data(self, instance: Instance) -> InstanceData:
        """The instance's share of the task."""
        drawn = instance.data_fraction < 1 or instance.label_noise_rate > 0
        key = instance if drawn else instance.classes
        if key not in self._data:
            self._data[key] = instance_data(self.task, instance)
        return self._data[key]

    def _samples(self, split: Split, weights: Sequence[Tensor]) -> Samples:
        return Samples(
            inputs=split.inputs, targets=split.targets, weights=torch.stack(list(weights)), prepare=self.task.prepare
        )

    def _birth(self, instance: Instance) -> tuple[Tensor, Tensor]:
        """Host parameters ``[P]`` and which of them exist ``bool [P]``."""
        self._host.reset(generator("host", instance.host_seed))
        mask = fault_mask(self._host, instance.family, self.training.alive_channels)
        live = torch.cat([mask[name].flatten() for name, _ in self._host.named_host_parameters()])
        return flatten_parameters(self._host.segments), live


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinCurve:
    """Curve of an instance in which nothing grows: val after each epoch, ``float64 [T]``, and test at the end.

    All finite: a host that broke down (``crashed``) counts as guessing from that epoch on.
    """

    points: Tensor
    loss: Tensor
    accuracy: Tensor
    test_accuracy: float
    crashed: bool


class TwinCache:
    """Curves of never-grown twins, computed once per instance.

    A twin is stacked like the environments it is compared with (same number of hosts, same mapping, same kind of
    device): only then do both compute bit-equal numbers, and a controller that never grows earns exactly 0.

    Args:
        nursery: brings instances to life.
        make_population: builds an empty population like the environments' own.
        progress: called with (done, total) while curves are computed.
    """

    def __init__(
        self,
        nursery: Nursery,
        make_population: Callable[[], Population],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._nursery = nursery
        self._make_population = make_population
        self._progress = progress
        self._curves: dict[Instance, TwinCurve] = {}

    def require(self, instances: Iterable[Instance]) -> None:
        """Make sure that the curves of these instances are there."""
        missing = [instance for instance in dict.fromkeys(instances) if instance not in self._curves]
        if not missing:
            return
        population = self._make_population()
        for begin in range(0, len(missing), population.num_envs):
            self._progress(begin, len(missing))
            self._grow_nothing(population, missing[begin : begin + population.num_envs])
        self._progress(len(missing), len(missing))

    def require_together(self, instances: Iterable[Instance], ranks: Ranks) -> None:
        """As :meth:`require`, on all ranks at once, which share the work where their stacks are alike."""
        population = self._make_population()
        wanted = list(dict.fromkeys(instances))
        if len(set(ranks.all_gather((population.num_envs, self._kind)))) > 1:
            self.require(wanted)  # curves of another stack or device would not be equal to the bit
            return
        own = wanted[ranks.rank :: ranks.size]
        self.require(own)
        for curves in ranks.all_gather({instance: self._curves[instance] for instance in own}):
            self._curves.update(curves)

    def __getitem__(self, instance: Instance) -> TwinCurve:
        self.require([instance])
        return self._curves[instance]

    def after(self, instances: Sequence[Instance], epochs: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Points and loss of some twins, ``[E]`` each, after these epochs, counted from 0."""
        curves = [self[instance] for instance in instances]
        points = torch.stack([curve.points[epoch] for curve, epoch in zip(curves, epochs, strict=True)])
        loss = torch.stack([curve.loss[epoch] for curve, epoch in zip(curves, epochs, strict=True)])
        return points, loss

    def state_dict(self) -> State:
        """All curves, each with its instance, and the kind of device that they come from."""
        return {
            "device": self._kind,
            "curves": [
                {"instance": asdict(instance), **plain_fields(curve)} for instance, curve in self._curves.items()
            ],
        }

    @property
    def _kind(self) -> str:
        return device_name(self._nursery.task.device)

    def load_state_dict(self, state: State) -> None:
        """Have these curves and no others; none if they are of another kind of device."""
        self._curves = {}
        if state.get("device") != self._kind:
            return
        for record in state["curves"]:
            values = dict(record)
            instance = Instance(**values.pop("instance"))
            self._curves[instance] = TwinCurve(**values)

    def _grow_nothing(self, population: Population, instances: Sequence[Instance]) -> None:
        nursery, training = self._nursery, self._nursery.training
        # A stack of the usual size: places left over repeat an instance.
        rows = [instances[row % len(instances)] for row in range(population.num_envs)]
        nursery.place(population, range(population.num_envs), rows)
        empty = torch.zeros_like(population.blueprint, dtype=torch.bool)
        growth = GrowthStage(alpha=empty.double(), developing=empty, isolated=empty)
        targets, lr = nursery.train_targets(rows), nursery.lr(rows)
        curves, crashed = [], torch.zeros(population.num_envs, dtype=torch.bool)
        for epoch in range(training.num_epochs):
            stats = train_epoch(
                population,
                nursery.task.train.inputs,
                targets,
                nursery.order(rows, [epoch] * len(rows)),
                growth,
                incubation="auxiliary",
                num_steps=training.steps_per_epoch,
                lr=lr,
                max_grad_norm=training.max_grad_norm,
                take=nursery.take,
            )
            scores, _ = evaluate(population, nursery.val(rows), growth.alpha)
            crashed = crashed | (breakdowns(stats.loss, scores) != Breakdown.NONE)
            scores = as_guessing(scores, crashed, nursery.task)
            curves.append(torch.stack([scores.points, scores.loss, scores.accuracy]))
        test = as_guessing(evaluate(population, nursery.test(rows), growth.alpha)[0], crashed, nursery.task)
        points, loss, accuracy = torch.stack(curves, dim=-1)  # (E, T) each
        for row, instance in enumerate(instances):
            self._curves[instance] = TwinCurve(
                points=points[row],
                loss=loss[row],
                accuracy=accuracy[row],
                test_accuracy=float(test.accuracy[row]),
                crashed=bool(crashed[row]),
            )
