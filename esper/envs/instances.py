"""Instances: which host, with which data order, an environment trains in an episode.

Without variety between hosts a fixed schedule is optimal and a controller has nothing to learn. A pool is finite, so
that the curve of the never-grown twin is computed once per instance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from esper.hosts.faults import FEW_CLASSES, INTACT, check_fault
from esper.rng import derive_seed, generator
from esper.tasks.data import TaskData

SplitName = Literal["train", "held_out"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One host to grow.

    Attributes:
        index: position in its pool.
        split: instances of ``held_out`` are never trained on.
        family: what is wrong with the host.
        host_seed, order_seed: of host init and of data order.
        classes: the only classes in its data, or ``None`` for all.
    """

    index: int
    split: SplitName
    family: str
    host_seed: int
    order_seed: int
    classes: tuple[int, ...] | None = None

    @property
    def fault(self) -> str:
        """What :func:`esper.hosts.faults.fault_mask` takes."""
        return INTACT if self.family == FEW_CLASSES else self.family


@dataclass(frozen=True, slots=True)
class InstancePool:
    """A finite set of instances of one split."""

    instances: tuple[Instance, ...]

    @classmethod
    def build(
        cls,
        families: Mapping[str, float],
        count: int,
        split: str,
        *,
        num_blocks: int,
        num_classes: int,
        num_few_classes: int = 3,
        base_seed: int = 0,
    ) -> InstancePool:
        """Make the instances of a split.

        Args:
            families: family to weight: one of ``FAULT_FORMS`` in :mod:`esper.hosts.faults`. Families get shares
                of ``count`` in proportion to their weights (largest remainder), evenly mixed along the pool.
            count: number of instances.
            split: ``train`` or ``held_out``. No two instances of both together share a seed.
            num_blocks: of the host.
            num_classes: of the task.
            num_few_classes: classes that an instance of ``few_classes`` keeps, drawn per instance.
            base_seed: another pool of the same kind; not the run's seed, or runs would not be comparable.

        Raises:
            ValueError: unknown family or split, a weight below 0, no weight at all, or a count out of range.
        """
        _check_families(families, num_blocks)
        if split not in SPLITS:
            raise ValueError(f"unknown instance split {split!r}; known: {', '.join(SPLITS)}")
        if count < 1:
            raise ValueError(f"a pool needs at least 1 instance, not {count}")
        if not 2 <= num_few_classes <= num_classes:
            raise ValueError(
                f"num_few_classes={num_few_classes} must be from 2 to {num_classes}, the classes there are"
            )
        names = _interleave(_apportion(families, count))
        return cls(
            tuple(
                _make_instance(index, split, family, base_seed, num_classes, num_few_classes)
                for index, family in enumerate(names)
            )
        )

    def draw(self, run_seed: int, env: int, episode: int) -> Instance:
        """The instance of an environment's episode.

        Environments of one episode get different instances while there are enough, so that each episode sees the pool's
        mix of families.
        """
        lap, position = divmod(env, len(self.instances))
        order = torch.randperm(len(self.instances), generator=generator("instance", run_seed, episode, lap))
        return self.instances[int(order[position])]

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> Instance:
        return self.instances[index]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)


def _check_families(families: Mapping[str, float], num_blocks: int) -> None:
    for family, weight in families.items():
        check_fault(family, num_blocks)
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"weight of instance family {family!r} must be 0 or more, not {weight}")
    if not sum(families.values()) > 0:
        raise ValueError(f"instance families {dict(families)} have no weight at all")


def _apportion(families: Mapping[str, float], count: int) -> dict[str, int]:
    """Whole shares of ``count``: floors of the exact shares, then one more to the largest remainders."""
    total = sum(families.values())
    exact = {family: count * weight / total for family, weight in families.items()}
    shares = {family: math.floor(share) for family, share in exact.items()}
    by_remainder = sorted(families, key=lambda family: shares[family] - exact[family])
    for family in by_remainder[: count - sum(shares.values())]:
        shares[family] += 1
    return shares


def _interleave(shares: Mapping[str, int]) -> list[str]:
    """Names, each as often as its share says, so mixed that every prefix has about the mix of the whole."""
    slots = [((i + 0.5) / share, name) for name, share in shares.items() for i in range(share)]
    return [name for _, name in sorted(slots, key=lambda slot: slot[0])]


def _make_instance(
    index: int, split: SplitName, family: str, base_seed: int, num_classes: int, num_few_classes: int
) -> Instance:
    stream = ("instance", base_seed, split, index)
    classes = None
    if family == FEW_CLASSES:
        drawn = torch.randperm(num_classes, generator=generator(*stream, "classes"))[:num_few_classes]
        classes = tuple(sorted(drawn.tolist()))
    return Instance(
        index=index,
        split=split,
        family=family,
        host_seed=_split_seed(split, *stream, "host"),
        order_seed=_split_seed(split, *stream, "order"),
        classes=classes,
    )


def _split_seed(split: SplitName, *parts: int | str) -> int:
    # The last bit names the split, so that train and held-out seeds differ by construction, not by luck.
    return derive_seed(*parts) >> 1 << 1 | SPLITS.index(split)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceData:
    """An instance's share of the task's data.

    Attributes:
        train_pool: ``int64 [M]``, indices of training samples.
        val_weight, test_weight: ``float32 [N_val]`` and ``[N_test]``; equal on the instance's samples, 0 elsewhere,
            sum 1: a weighted sum over the whole split is the mean over the instance's samples.
    """

    train_pool: Tensor
    val_weight: Tensor
    test_weight: Tensor


def instance_data(task: TaskData, instance: Instance) -> InstanceData:
    """Restrict a task to an instance's classes.

    Raises:
        ValueError: a split holds none of the classes.
    """
    masks = []
    for name, split in (("train", task.train), ("val", task.val), ("test", task.test)):
        mask = torch.ones_like(split.labels, dtype=torch.bool)
        if instance.classes is not None:
            mask = torch.isin(split.labels, torch.tensor(instance.classes, device=split.labels.device))
        if not mask.any():
            raise ValueError(f"{task.name} {name} has no sample of classes {instance.classes}")
        masks.append(mask)
    train, val, test = masks
    return InstanceData(
        train_pool=train.nonzero().squeeze(1), val_weight=val.float() / val.sum(), test_weight=test.float() / test.sum()
    )
