"""Settings of the host benchmarks: hosts, data and sizes of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.scale import experiment_of
from esper.envs.instances import Instance, InstancePool
from esper.envs.loader import HostTraining, InstanceLoader
from esper.hosts import SegmentedHost, build_host
from esper.hosts.faults import INTACT
from esper.population import Population, build_mapping
from esper.runtime.rng import generator
from esper.tasks import TaskData
from esper.tasks.augment import Augmentation
from esper.tasks.data import Split

NUM_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One kind of host on one kind of data.

    Attributes:
        name: name in the tables.
        host: host prototype.
        slot_ids: places that may hold modules.
        loader: data and training settings of the hosts.
        mappings: mappings to benchmark on a CPU.
    """

    name: str
    host: SegmentedHost
    slot_ids: tuple[str, ...]
    loader: InstanceLoader
    mappings: tuple[str, ...]

    @property
    def task(self) -> TaskData:
        """The data of the task."""
        return self.loader.task

    @property
    def samples(self) -> int:
        """Number of training samples of one host in one epoch."""
        return self.loader.training.steps_per_epoch * self.loader.training.batch_size

    def instances(self, num_envs: int) -> tuple[Instance, ...]:
        """Return intact instances, each with its own initialisation and data order."""
        blocks = len(self.host.segments) - 1
        pool = InstancePool.build(
            {INTACT: 1.0}, num_envs, "train", host_family="cnn", num_blocks=blocks, num_classes=self.task.num_classes
        )
        return pool.instances

    def population(self, num_envs: int, mapping: str) -> Population:
        """Build hosts at birth under a mapping."""
        population = Population(self.host, self.slot_ids, num_envs, build_mapping(mapping))
        self.loader.place(population, range(num_envs), self.instances(num_envs))
        return population


def digits(preset: str) -> Setting:
    """Return the setting of a digits preset."""
    experiment = experiment_of(preset)
    return Setting(
        name="digits",
        host=experiment.host,
        slot_ids=experiment.slot_ids,
        loader=experiment.loader,
        mappings=("loop", "grouped", "matmul"),
    )


def colour(image_size: int, batch_size: int) -> Setting:
    """Return a setting with three 3x3 blocks of 8, 16 and 32 channels, 4 training batches and 1 validation batch of
    random images.

    Args:
        image_size: pixels per side.
        batch_size: images per batch.
    """
    steps, stream = 4, generator("benchmark images", image_size, batch_size)

    def split(count: int) -> Split:
        images = torch.randn(count, 3, image_size, image_size, generator=stream)
        images = images.contiguous(memory_format=torch.channels_last)
        return Split(images, torch.randint(NUM_CLASSES, (count,), generator=stream))

    name = f"{image_size}x{image_size}"
    task = TaskData(
        name=name,
        version=1,
        train=split(steps * batch_size),
        val=split(batch_size),
        test=split(batch_size),
        num_classes=NUM_CLASSES,
    )
    host = build_host(
        "cnn",
        in_channels=3,
        image_size=image_size,
        num_classes=NUM_CLASSES,
        widths=[8, 16, 32],
        kernel_sizes=[3, 3, 3],
        strides=[1, 1, 1],
        pools=[True, True, True],
    )
    training = HostTraining(
        num_epochs=25,
        steps_per_epoch=steps,
        batch_size=batch_size,
        lr=0.01,
        max_grad_norm=0.0,
        alive_channels=2,
        augmentation=Augmentation(),
    )
    return Setting(
        name=name, host=host, slot_ids=host.slot_ids, loader=InstanceLoader(task, host, training), mappings=("loop",)
    )
