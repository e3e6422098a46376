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

from esper.hosts.faults import Faults, check_fault, parse_faults
from esper.runtime.rng import derive_seed, generator
from esper.tasks.data import IGNORED, TaskData

SplitName = Literal["train", "held_out"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One host to grow.

    Attributes:
        index: position in its pool.
        split: instances of ``held_out`` are never trained on.
        family: what is wrong with the host: a name that :func:`esper.hosts.faults.parse_faults` reads.
        host_seed, order_seed: of host init; of data order, and of which samples it has and which labels are wrong.
        classes: the only classes in its data, or ``None`` for all.
        data_fraction: share of the training samples that it has.
        label_noise_rate: share of those whose label is wrong.
    """

    index: int
    split: SplitName
    family: str
    host_seed: int
    order_seed: int
    classes: tuple[int, ...] | None = None
    data_fraction: float = 1.0
    label_noise_rate: float = 0.0

    @property
    def faults(self) -> Faults:
        """What its family's name says."""
        return parse_faults(self.family)


@dataclass(frozen=True, slots=True)
class InstancePool:
    """A finite set of instances of one split.

    Attributes:
        instances: all of them.
        assigned: environment i grows instance i in every episode, instead of drawing.
    """

    instances: tuple[Instance, ...]
    assigned: bool = False

    @classmethod
    def build(
        cls,
        families: Mapping[str, float],
        count: int,
        split: str,
        *,
        host_family: str,
        num_blocks: int,
        num_classes: int,
        num_few_classes: int = 3,
        data_fraction: float = 0.1,
        label_noise_rate: float = 0.3,
        base_seed: int = 0,
    ) -> InstancePool:
        """Make the instances of a split.

        Args:
            families: family to weight: one of ``FAULT_FORMS`` in :mod:`esper.hosts.faults`, or several joined with
                ``+``. Families get shares of ``count`` in proportion to their weights (largest remainder), evenly
                mixed along the pool.
            count: number of instances.
            split: ``train`` or ``held_out``. No two instances of both together share a seed.
            host_family, num_blocks: of the host.
            num_classes: of the task.
            num_few_classes: classes that an instance of ``few_classes`` keeps, drawn per instance; at least 2.
            data_fraction: share of the training samples that one of ``few_samples`` keeps.
            label_noise_rate: share of the training labels that are wrong in one of ``label_noise``.
            base_seed: another pool of the same kind; not the run's seed, or runs would not be comparable.

        Raises:
            ValueError: unknown family or split, a weight below 0, no weight at all, or a count or share out of range.
        """
        _check_families(families, host_family, num_blocks)
        if split not in SPLITS:
            raise ValueError(f"unknown instance split {split!r}; known: {', '.join(SPLITS)}")
        if count < 1:
            raise ValueError(f"a pool needs at least 1 instance, not {count}")
        few = any(weight and parse_faults(family).few_classes for family, weight in families.items())
        if few and not 2 <= num_few_classes <= num_classes:
            raise ValueError(
                f"num_few_classes={num_few_classes} must be from 2 to {num_classes}, the classes there are"
            )
        for name, share in (("data_fraction", data_fraction), ("label_noise_rate", label_noise_rate)):
            if not 0 < share <= 1:
                raise ValueError(f"{name}={share} must be above 0 and at most 1")
        instances = []
        for index, family in enumerate(_interleave(_apportion(families, count))):
            faults, stream = parse_faults(family), ("instance", base_seed, split, index)
            instances.append(
                Instance(
                    index=index,
                    split=split,
                    family=family,
                    host_seed=_split_seed(split, *stream, "host"),
                    order_seed=_split_seed(split, *stream, "order"),
                    classes=_draw_classes(num_classes, num_few_classes, *stream) if faults.few_classes else None,
                    data_fraction=data_fraction if faults.few_samples else 1.0,
                    label_noise_rate=label_noise_rate if faults.label_noise else 0.0,
                )
            )
        return cls(tuple(instances))

    def draw(self, run_seed: int, env: int, episode: int) -> Instance:
        """The instance of an environment's episode.

        Environments of one episode get different instances while there are enough, so that each episode sees the pool's
        mix of families.
        """
        if self.assigned:
            return self.instances[env]
        lap, position = divmod(env, len(self.instances))
        order = torch.randperm(len(self.instances), generator=generator("instance", run_seed, episode, lap))
        return self.instances[int(order[position])]

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> Instance:
        return self.instances[index]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)


def _check_families(families: Mapping[str, float], host_family: str, num_blocks: int) -> None:
    for family, weight in families.items():
        check_fault(family, host_family, num_blocks)
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


def _draw_classes(num_classes: int, kept: int, *stream: int | str) -> tuple[int, ...]:
    return tuple(sorted(torch.randperm(num_classes, generator=generator(*stream, "classes"))[:kept].tolist()))


def _split_seed(split: SplitName, *parts: int | str) -> int:
    # The last bit names the split, so that train and held-out seeds differ by construction, not by luck.
    return derive_seed(*parts) >> 1 << 1 | SPLITS.index(split)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceData:
    """An instance's share of the task's data.

    Attributes:
        train_pool: ``int64 [M]``, indices of training samples.
        train_targets: ``[N_train, ...]``, targets as the host is told them: the task's own tensor, or a noisy copy.
        val_weight, test_weight: ``float32 [N_val]`` and ``[N_test]``; in proportion to how many targets count on the
            instance's samples, 0 elsewhere, sum 1: a weighted sum over the whole split is the mean over its targets.
    """

    train_pool: Tensor
    train_targets: Tensor
    val_weight: Tensor
    test_weight: Tensor


def instance_data(task: TaskData, instance: Instance) -> InstanceData:
    """Restrict a task to an instance's classes and samples, and tell it wrong labels where its family says so.

    Only training loses samples and right labels: val and test are the task's own, of the instance's classes.

    Raises:
        ValueError: a split holds none of the classes, or the samples have none.
    """
    if task.kind == "tokens" and instance.classes is not None:
        raise ValueError(f"family {instance.family!r} is about classes of images; task {task.name} has text")
    found = []
    for name, split in task.splits().items():
        counts = split.num_targets()
        if instance.classes is not None:
            counts = counts * torch.isin(split.targets, torch.tensor(instance.classes, device=split.targets.device))
        if not counts.any():
            raise ValueError(f"{task.name} {name} has no sample of classes {instance.classes}")
        found.append(counts)
    train, val, test = found
    pool, labels = train.nonzero().squeeze(1), task.train.targets
    if instance.data_fraction < 1:
        pool = _some(pool, max(1, round(instance.data_fraction * len(pool))), "samples", instance.order_seed)
    if instance.label_noise_rate > 0:
        labels = _with_noise(labels, pool, instance, task.num_classes)
    return InstanceData(
        train_pool=pool,
        train_targets=labels,
        val_weight=val.float() / val.sum(),
        test_weight=test.float() / test.sum(),
    )


def _some(pool: Tensor, count: int, *stream: int | str) -> Tensor:
    """``count`` of the samples, in their order. Drawn on the CPU, so the same on every device."""
    picks = torch.randperm(len(pool), generator=generator(*stream))[:count].sort().values
    return pool[picks.to(pool.device)]


def _with_noise(targets: Tensor, pool: Tensor, instance: Instance, num_classes: int) -> Tensor:
    """Targets ``[N, ...]`` with the instance's share of those of the pool's samples wrong."""
    flat, each = targets.flatten(), targets[0].numel()
    places = (pool[:, None] * each + torch.arange(each, device=pool.device)).flatten()
    places = places[flat[places] != IGNORED]
    wrong = _some(places, round(instance.label_noise_rate * len(places)), "wrong labels", instance.order_seed)
    others = _other_classes(flat[wrong].long(), instance, num_classes)
    return flat.index_copy(0, wrong, others.to(flat.dtype)).view_as(targets)


def _other_classes(labels: Tensor, instance: Instance, num_classes: int) -> Tensor:
    """For each label another class of the instance, all equally likely."""
    classes = torch.tensor(instance.classes or range(num_classes), device=labels.device)
    stream = generator("other classes", instance.order_seed)
    shift = torch.randint(1, len(classes), labels.shape, generator=stream).to(labels.device)
    return classes[(torch.searchsorted(classes, labels) + shift) % len(classes)]
