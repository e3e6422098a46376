"""Instances: the host and the data order that an environment trains in an episode.

Without variety between hosts a fixed schedule is optimal and a controller has nothing to learn. A pool is finite, so
that the curve of the never-grown twin is computed once per instance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from esper.envs.arrivals import Arrivals
from esper.envs.joins import Joins
from esper.hosts.faults import INTACT, Faults, check_fault, parse_faults
from esper.runtime.rng import derive_seed, generator
from esper.tasks.data import IGNORED, TaskData

SplitName = Literal["train", "held_out", "validation"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Description of one host to grow: its seeds, its family and its share of the data.

    Attributes:
        index: position in its pool.
        split: instances of ``held_out`` and ``validation`` are never trained on; the latter are for choices.
        family: name of the host family, as parsed by :func:`esper.hosts.faults.parse_faults`.
        host_seed, order_seed: seed of the host's initialisation; seed of data order, samples and wrong labels.
        classes: the only classes in its data, or ``None`` for all.
        data_fraction: share of the training samples.
        label_noise_rate: share of wrong labels among these.
        rent_weight: points that doubling this host must earn; ``None`` for those of the run.
        arrival: first epoch with all of its classes; 0 if they are there from the start.
        first_classes: the only classes before that epoch; ``None`` if there is none before it.
    """

    index: int
    split: SplitName
    family: str
    host_seed: int
    order_seed: int
    classes: tuple[int, ...] | None = None
    data_fraction: float = 1.0
    label_noise_rate: float = 0.0
    rent_weight: float | None = None
    arrival: int = 0
    first_classes: tuple[int, ...] | None = None

    @property
    def faults(self) -> Faults:
        """Parsed faults of its family."""
        return parse_faults(self.family)

    def rent(self, usual: float) -> float:
        """Return the points that doubling this host must earn, ``usual`` unless it has a price of its own."""
        return usual if self.rent_weight is None else self.rent_weight


@dataclass(frozen=True, slots=True)
class InstancePool:
    """A finite set of instances of one split.

    Attributes:
        instances: all instances of the pool.
        assigned: let environment i grow instance i in every episode, instead of drawing.
        joined: true if its families are random joins of faults.
    """

    instances: tuple[Instance, ...]
    assigned: bool = False
    joined: bool = False

    @classmethod
    def build(
        cls,
        families: Mapping[str, float] | Joins,
        count: int,
        split: str,
        *,
        host_family: str,
        num_blocks: int,
        num_classes: int,
        num_few_classes: int = 3,
        data_fraction: float = 0.1,
        label_noise_rate: float = 0.3,
        rent_weights: Sequence[float] = (),
        arrivals: Arrivals | None = None,
        base_seed: int = 0,
    ) -> InstancePool:
        """Make the instances of a split.

        Args:
            families: random joins; or family to weight: one of ``FAULT_FORMS`` in :mod:`esper.hosts.faults`, or several
                joined with ``+``. Families get shares of ``count`` in proportion to their weights (largest remainder),
                evenly mixed along the pool.
            count: number of instances.
            split: ``train``, ``validation`` or ``held_out``. No two instances of train and held-out share a seed.
            host_family, num_blocks: kind of host, and its number of blocks.
            num_classes: number of classes of the task.
            num_few_classes: classes that an instance of ``few_classes`` keeps, drawn per instance; at least 2.
            data_fraction: share of the training samples that one of ``few_samples`` keeps.
            label_noise_rate: share of the training labels that are wrong in one of ``label_noise``.
            rent_weights: prices to draw from, all of them equally often; without any, instances have none of their own.
            arrivals: distribution of the epoch in which classes arrive; without it all are there from the start.
            base_seed: seed of the pool; independent of the run's seed, so that runs are comparable.

        Raises:
            ValueError: unknown family or split, no weight, or a weight, count, share or number of classes out of range.
        """
        if split not in SPLITS:
            raise ValueError(f"unknown instance split {split!r}; known: {', '.join(SPLITS)}")
        if count < 1:
            raise ValueError(f"a pool needs at least 1 instance, not {count}")
        if _check_families(families, host_family, num_blocks):
            _check_few_classes(num_few_classes, num_classes)
        _check_shares(data_fraction=data_fraction, label_noise_rate=label_noise_rate)
        instances = []
        rents = _draw_rents(rent_weights, count, "instance", base_seed, split, "rents")
        for index, family in enumerate(_draw_families(families, count, split, base_seed)):
            faults, stream = parse_faults(family), ("instance", base_seed, split, index)
            classes = _draw_classes(num_classes, num_few_classes, *stream) if faults.few_classes else None
            first, arrival = arrivals.draw(classes or range(num_classes), *stream, "arrival") if arrivals else (None, 0)
            instances.append(
                Instance(
                    index=index,
                    split=split,
                    family=family,
                    host_seed=_split_seed(split, *stream, "host"),
                    order_seed=_split_seed(split, *stream, "order"),
                    classes=classes,
                    data_fraction=data_fraction if faults.few_samples else 1.0,
                    label_noise_rate=label_noise_rate if faults.label_noise else 0.0,
                    rent_weight=rents[index],
                    arrival=arrival,
                    first_classes=first,
                )
            )
        return cls(tuple(instances), joined=isinstance(families, Joins))

    def strata(self) -> list[str]:
        """Return what the pool has a fixed share of, for each instance: its family, or its price among random joins.

        Within a stratum, instances are independent draws; joins are draws too, and no strata.
        """
        if self.joined:
            return [f"price {instance.rent_weight}" for instance in self]
        return [instance.family for instance in self]

    def draw(self, run_seed: int, env: int, episode: int) -> Instance:
        """Draw the instance of an environment's episode.

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


def _check_few_classes(kept: int, num_classes: int) -> None:
    if not 2 <= kept <= num_classes:
        raise ValueError(f"num_few_classes={kept} must be from 2 to {num_classes}, the classes there are")


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 < share <= 1:
            raise ValueError(f"{name}={share} must be above 0 and at most 1")


def _check_families(families: Mapping[str, float] | Joins, host_family: str, num_blocks: int) -> bool:
    """Refuse families that cannot be drawn; return true if some have fewer classes."""
    weights = families.host_faults or {INTACT: 1.0} if isinstance(families, Joins) else families
    for family, weight in weights.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"weight of instance family {family!r} must be 0 or more, not {weight}")
        if weight:
            check_fault(family, host_family, num_blocks)
    if not sum(weights.values()) > 0:
        raise ValueError(f"instance families {dict(weights)} have no weight at all")
    return any(weight and parse_faults(family).few_classes for family, weight in weights.items())


def _draw_families(families: Mapping[str, float] | Joins, count: int, split: str, base_seed: int) -> list[str]:
    if isinstance(families, Joins):
        return families.draw_split(count, split, base_seed)
    return _interleave(_apportion(families, count))


def _apportion(families: Mapping[str, float], count: int) -> dict[str, int]:
    """Divide ``count`` into whole shares: floors of the exact shares, then one more for the largest remainders."""
    total = sum(families.values())
    exact = {family: count * weight / total for family, weight in families.items()}
    shares = {family: math.floor(share) for family, share in exact.items()}
    by_remainder = sorted(families, key=lambda family: shares[family] - exact[family])
    for family in by_remainder[: count - sum(shares.values())]:
        shares[family] += 1
    return shares


def _interleave(shares: Mapping[str, int]) -> list[str]:
    """Repeat each name by its share, mixed so that every prefix has about the mix of the whole."""
    slots = [((i + 0.5) / share, name) for name, share in shares.items() for i in range(share)]
    return [name for _, name in sorted(slots, key=lambda slot: slot[0])]


def _draw_classes(num_classes: int, kept: int, *stream: int | str) -> tuple[int, ...]:
    return tuple(sorted(torch.randperm(num_classes, generator=generator(*stream, "classes"))[:kept].tolist()))


def _draw_rents(weights: Sequence[float], count: int, *stream: int | str) -> list[float | None]:
    """Draw a price for each instance: every run of as many instances as there are prices has each of them once."""
    if not weights:
        return [None] * count
    laps = range(-(-count // len(weights)))
    orders = [torch.randperm(len(weights), generator=generator(*stream, lap)).tolist() for lap in laps]
    return [weights[position] for order in orders for position in order][:count]


def _split_seed(split: SplitName, *parts: int | str) -> int:
    # The last bit is that of the split, so that train and held-out seeds differ by construction.
    return derive_seed(*parts) >> 1 << 1 | (split == "held_out")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceData:
    """The part of the task's data that an instance uses.

    Attributes:
        train_pool: ``int64 [M]``, indices of training samples, on the CPU, where data orders are drawn.
        train_targets: ``[N_train, ...]``, training targets of the host: the task's own tensor, or a noisy copy.
        val_weight, test_weight: ``float32 [N_val]`` and ``[N_test]``; proportional to the number of targets that count
            on the instance's samples, 0 elsewhere, sum 1: a weighted sum over the whole split is the mean over its
            targets.
    """

    train_pool: Tensor
    train_targets: Tensor
    val_weight: Tensor
    test_weight: Tensor


def instance_data(task: TaskData, instance: Instance) -> InstanceData:
    """Restrict a task to an instance's classes and samples, with wrong labels if its family has them.

    Only training has fewer samples and wrong labels: val and test are the task's own, of the instance's classes.

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
        train_pool=pool.cpu(),
        train_targets=labels,
        val_weight=val.float() / val.sum(),
        test_weight=test.float() / test.sum(),
    )


def first_data(task: TaskData, instance: Instance, whole: InstanceData) -> InstanceData:
    """Restrict an instance's data to the classes that it has before the others arrive.

    A sample with a wrong label is there once its own class and that of its label are.

    Raises:
        ValueError: a split holds none of these classes.
    """
    assert instance.first_classes is not None, "an instance whose classes arrive has first ones"
    first = torch.tensor(instance.first_classes)

    def there(labels: Tensor) -> Tensor:
        return torch.isin(labels, first.to(labels.device))

    pool = whole.train_pool
    known = (there(task.train.targets) & there(whole.train_targets)).cpu()
    found = {"train": pool[known[pool]]}
    for name, split, weight in (("val", task.val, whole.val_weight), ("test", task.test, whole.test_weight)):
        found[name] = weight * there(split.targets)
    for name, samples in found.items():
        if not len(samples) or (name != "train" and not samples.any()):
            classes = ", ".join(map(str, instance.first_classes))
            raise ValueError(
                f"instances.arrival.classes={len(first)}: {name} of task {task.name} has no sample of classes "
                f"{classes}, the first ones of {instance.split} instance {instance.index}: have more of them first"
            )
    return InstanceData(
        train_pool=found["train"],
        train_targets=whole.train_targets,
        val_weight=found["val"] / found["val"].sum(),
        test_weight=found["test"] / found["test"].sum(),
    )


def _some(pool: Tensor, count: int, *stream: int | str) -> Tensor:
    """Draw ``count`` of the samples, in their order. Drawn on the CPU, so the same on every device."""
    picks = torch.randperm(len(pool), generator=generator(*stream))[:count].sort().values
    return pool[picks.to(pool.device)]


def _with_noise(targets: Tensor, pool: Tensor, instance: Instance, num_classes: int) -> Tensor:
    """Return targets ``[N, ...]`` with the instance's share of wrong ones among the samples of the pool."""
    flat, each = targets.flatten(), targets[0].numel()
    places = (pool[:, None] * each + torch.arange(each, device=pool.device)).flatten()
    places = places[flat[places] != IGNORED]
    wrong = _some(places, round(instance.label_noise_rate * len(places)), "wrong labels", instance.order_seed)
    others = _other_classes(flat[wrong].long(), instance, num_classes)
    return flat.index_copy(0, wrong, others.to(flat.dtype)).view_as(targets)


def _other_classes(labels: Tensor, instance: Instance, num_classes: int) -> Tensor:
    """Replace each label by another class of the instance, all equally likely."""
    classes = torch.tensor(instance.classes or range(num_classes), device=labels.device)
    stream = generator("other classes", instance.order_seed)
    shift = torch.randint(1, len(classes), labels.shape, generator=stream).to(labels.device)
    return classes[(torch.searchsorted(classes, labels) + shift) % len(classes)]
