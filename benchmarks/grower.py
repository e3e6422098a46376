"""A network that grows in a user's own loop, against the same loop without a Grower.

Axis legend: B = batch, C = channels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.records import Record
from benchmarks.scale import Scale, experiment_of
from benchmarks.settings import NUM_CLASSES
from benchmarks.timing import Clock, interleave, records
from esper.config.root import Config
from esper.experiment.acting import growth_rules
from esper.grower import Grower
from esper.grower.place import Place
from esper.grower.scores import Score
from esper.grower.views import GrowthView
from esper.growth import GrowthRules, Stage
from esper.growth.actions import FactoredAction
from esper.runtime.rng import generator

SECTION = "grower"
FLOOR = "bare loop"
WHOLE = "same network, bare loop"
BY_HAND = "developing, by hand"
SLOTS = ("0", "1", "2")
GROWING = "1"
"""Path of the place that has a module: the middle one."""

MANY = 10**6
"""Number of epochs of a Grower, more than a benchmark ends."""

Batches = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of network, its batches, the number of epochs in one timing, and that of timed rounds."""

    name: str
    network: nn.Sequential
    batches: Batches
    repeats: int
    rounds: int


class Loop:
    """A user's own training loop, with or without a Grower.

    Args:
        network: trained in place.
        batches: those of an epoch.
    """

    def __init__(self, network: nn.Module, batches: Batches) -> None:
        self.network, self.batches = network, batches
        self.optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        self.grower: Grower | None = None

    def grow(self, decide: Callable[[GrowthView], FactoredAction | None] | str, **options: Any) -> Grower:
        """Start to grow the network."""
        x, y = self.batches[0]
        self.grower = Grower(
            self.network,
            self.optimizer,
            slots=SLOTS,
            controller=decide,
            num_epochs=MANY,
            first_loss=lambda: F.cross_entropy(self.network(x), y),
            **options,
        )
        return self.grower

    def epoch(self) -> None:
        """Take one step on every batch."""
        for x, y in self.batches:
            self.optimizer.zero_grad()
            self.backward(x, y)
            if self.grower is not None:
                self.grower.incubate(lambda x=x, y=y: F.cross_entropy(self.network(x), y))  # type: ignore[misc]
            self.optimizer.step()

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Compute the gradients of one batch."""
        F.cross_entropy(self.network(x), y).backward()  # type: ignore[no-untyped-call]


class ByHand(Loop):
    """A network with a module that trains in isolation, in plain PyTorch: a second pass from its place on."""

    def __init__(self, network: nn.Sequential, module: nn.Module, batches: Batches) -> None:
        super().__init__(nn.ModuleList([network, module]), batches)
        behind = SLOTS.index(GROWING) + 1
        self.head, self.module, self.tail = network[:behind], module, network[behind:]

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Compute the gradients of network and module."""
        feature = self.head(x)
        loss = F.cross_entropy(self.tail(feature), y)
        self.tail.requires_grad_(False)  # the main pass is recorded already: this freezes what follows
        loss = loss + F.cross_entropy(self.tail(self.module(feature.detach())), y)
        self.tail.requires_grad_(True)
        loss.backward()  # type: ignore[no-untyped-call]


def run(scale: Scale) -> list[Record]:
    """Time epochs of training steps, and the ends of epochs, in milliseconds."""
    found = []
    for workload in (_digits(scale), _colour(scale)):
        for name, (grown, contenders) in _contenders(workload).items():
            seconds = interleave(_repeated(contenders, workload.repeats), workload.rounds, clock=scale.clock)
            found += records(
                seconds,
                section=SECTION,
                workload=f"{workload.name}: {name}",
                hosts=1,
                floor=FLOOR,
                grown=grown,
                per=workload.repeats,
                samples=sum(len(y) for _, y in workload.batches),
            )
        ends = _ends(_without_statistics(workload), scale)
        name = f"{workload.name}: end_epoch"
        rows = records(ends, section=SECTION, workload=name, hosts=1, floor=next(iter(ends)))
        found += [replace(row, ratio=None) for row in rows]
    return found


def _digits(scale: Scale) -> Workload:
    """The digits host of 8 channels on images of 8x8, as ordinary layers."""
    loader = experiment_of(scale.preset).loader
    size, data = loader.training.batch_size, loader.task.train
    batches = [(data.inputs[i : i + size], data.targets[i : i + size]) for i in range(0, 6 * size, size)]
    x = batches[0][0]
    network = nn.Sequential(
        _block(x.shape[1], 8, nn.GroupNorm(2, 8), stride=2),
        nn.Sequential(*_block(8, 8, nn.GroupNorm(2, 8)), nn.MaxPool2d(2)),
        _block(8, 8, nn.GroupNorm(2, 8)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, loader.task.num_classes)),
    )
    return Workload("digits", network, tuple(batches), repeats=2, rounds=scale.grower[0])


def _colour(scale: Scale) -> Workload:
    """A network of 32 channels with batch norm on random images."""
    size, count = scale.image_size, scale.image_batch
    stream = generator("benchmark images", size, count)
    batches = [
        (
            torch.randn(count, 3, size, size, generator=stream).contiguous(memory_format=torch.channels_last),
            torch.randint(NUM_CLASSES, (count,), generator=stream),
        )
        for _ in range(4)
    ]
    network = nn.Sequential(
        nn.Sequential(*_block(3, 32, nn.BatchNorm2d(32)), nn.MaxPool2d(2)),
        nn.Sequential(*_block(32, 32, nn.BatchNorm2d(32)), nn.MaxPool2d(2)),
        _block(32, 32, nn.BatchNorm2d(32)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, NUM_CLASSES)),
    )
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Workload(f"{size}x{size}, 32 channels", network, tuple(batches), repeats=1, rounds=scale.grower[1])


def _without_statistics(workload: Workload) -> Workload:
    """Return the workload with norms of the batch at hand: to estimate running statistics is part of validation."""
    network = copy.deepcopy(workload.network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return replace(workload, network=network)


def _block(inputs: int, outputs: int, norm: nn.Module, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), norm, nn.ReLU())


def _contenders(workload: Workload) -> dict[str, tuple[str | None, dict[str, Callable[[], object]]]]:
    """Return, for each kind of growth, the contender with the same modules, and all contenders."""
    bare = Loop(copy.deepcopy(workload.network), workload.batches)
    empty, gone = (_grown(workload, None) for _ in range(2))
    _finish(gone)
    half, full, done = (_grown(workload, stage, alpha) for stage, alpha in _KEPT)
    half_whole, full_whole = (_whole(workload, each) for each in (half, full))
    _finish(done)
    developing = _grown(workload, Stage.TRAINING)
    module = copy.deepcopy(_module(developing).body)
    by_hand = ByHand(copy.deepcopy(workload.network), module, workload.batches)
    return {
        "no module": (None, {FLOOR: bare.epoch, "Grower": empty.epoch, "finished": gone.epoch}),
        "one conv_light half blended": (
            WHOLE,
            {FLOOR: bare.epoch, WHOLE: half_whole.epoch, "Grower": half.epoch},
        ),
        "one conv_light fossilized": (
            WHOLE,
            {FLOOR: bare.epoch, WHOLE: full_whole.epoch, "Grower": full.epoch, "finished": done.epoch},
        ),
        "one conv_light developing": (
            BY_HAND,
            {FLOOR: bare.epoch, BY_HAND: by_hand.epoch, "Grower": developing.epoch},
        ),
    }


_KEPT = ((Stage.HOLDING, 0.5), (Stage.FOSSILIZED, 1.0), (Stage.FOSSILIZED, 1.0))


def _ends(workload: Workload, scale: Scale) -> dict[str, list[float]]:
    """Return seconds of ends of epochs, each after an epoch of training, without those of their validation."""
    contenders: dict[str, Callable[[], object]] = {}
    epochs: dict[str, Callable[[], object]] = {}
    validations = {}
    for name, stage in (("no module", None), ("one developing", Stage.TRAINING), ("one blended", Stage.HOLDING)):
        loop = _grown(workload, stage, incubation="straight_through")
        validations[name] = _Validation(loop, scale.clock)
        contenders[name], epochs[name] = validations[name].end, loop.epoch
    whole = interleave(contenders, workload.rounds, clock=scale.clock, before=epochs)
    return {
        name: [total - part for total, part in zip(seconds, validations[name].seconds[-len(seconds) :], strict=True)]
        for name, seconds in whole.items()
    }


class _Validation:
    """Ends of the epochs of a loop, whose validation is one small image and is timed apart.

    Attributes:
        seconds: time of validation in each end, however many configurations it compared.
    """

    def __init__(self, loop: Loop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._image = loop.batches[0][0][:1, :, :8, :8]
        self.seconds: list[float] = []

    def end(self) -> None:
        """End an epoch."""
        assert self._loop.grower is not None
        self.seconds.append(0.0)
        self._loop.grower.end_epoch(self._score)

    @torch.no_grad()
    def _score(self) -> Score:
        began = self._clock()
        self._loop.network(self._image)
        self.seconds[-1] += self._clock() - began
        return Score(points=50.0, loss=1.0, accuracy=0.5)


def _grown(workload: Workload, stage: Stage | None, alpha: float = 0.5, **options: Any) -> Loop:
    """Return a loop whose network has grown one conv_light up to a stage, ``None`` for nothing grown."""
    loop = Loop(copy.deepcopy(workload.network), workload.batches)

    def decide(view: GrowthView) -> FactoredAction | None:
        if view.epoch == 0 and stage is not None:
            return FactoredAction(op="GERMINATE", slot=GROWING, blueprint="conv_light", alpha_target=alpha)
        if stage is Stage.FOSSILIZED and "FOSSILIZE" in view.slots[GROWING].ops:
            return FactoredAction(op="FOSSILIZE", slot=GROWING)
        return None

    grower = loop.grow(decide, rules=_rules(MANY if stage is Stage.TRAINING else 1), **options)
    ends = _Validation(loop, process_time)
    while stage is not None and grower.view().slots[GROWING].stage != stage:
        loop.epoch()
        ends.end()
    return loop


def _rules(min_training_epochs: int) -> GrowthRules:
    usual = growth_rules(Config())
    return replace(usual, min_training_epochs=min_training_epochs, min_gradient_health=0.0)


def _whole(workload: Workload, loop: Loop) -> Loop:
    """Return a loop of the same network built whole: its module as a layer, plain if it is fully blended by ADD."""
    module = copy.deepcopy(_module(loop))
    network = copy.deepcopy(workload.network)
    behind = SLOTS.index(GROWING)
    network[behind] = nn.Sequential(network[behind], module if float(module.alpha) < 1.0 else module.body)
    return Loop(network, workload.batches)


def _module(loop: Loop) -> Any:
    place = loop.network.get_submodule(GROWING)
    assert isinstance(place, Place)
    return place.seed_module


def _finish(loop: Loop) -> None:
    assert loop.grower is not None
    loop.grower.finish()
    loop.grower = None


def _repeated(contenders: Mapping[str, Callable[[], object]], count: int) -> dict[str, Callable[[], object]]:
    def repeated(contender: Callable[[], object]) -> Callable[[], object]:
        def calls() -> None:
            for _ in range(count):
                contender()

        return calls

    return {name: repeated(contender) for name, contender in contenders.items()}
