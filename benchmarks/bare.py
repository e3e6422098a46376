"""The floor: hosts trained one after the other with plain PyTorch, channels-last, as one would without Esper.

Axis legend: B = batch, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.envs.twins import Nursery
from esper.hosts import SegmentedHost
from esper.population.mapping.norms import normalises_input


class BareTraining:
    """One network with an optimizer of its own.

    Args:
        network: changed in place.
        nursery: data on the CPU, and how hosts are trained.
    """

    def __init__(self, network: nn.Module, nursery: Nursery) -> None:
        self.network, training = _channels_last(network), nursery.training
        # Fused is the fastest Adam that PyTorch has for a small network: a floor that is easy to beat is none.
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=training.lr, fused=True)
        self.task, self.batch_size, self.steps_per_epoch = nursery.task, training.batch_size, training.steps_per_epoch

    def epoch(self) -> None:
        """Train one epoch in random order, then validate."""
        count = self.batch_size * self.steps_per_epoch
        for batch in torch.randperm(len(self.task.train))[:count].view(-1, self.batch_size).unbind():
            self.step(batch)
        self.validate()

    def step(self, batch: Tensor) -> None:
        """One optimizer step on the samples ``int64 [B]``."""
        images = self.task.train.inputs[batch].contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        self._backward(images, self.task.train.targets[batch])
        self.optimizer.step()

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Mean loss and accuracy over the validation split."""
        images = self.task.val.inputs.contiguous(memory_format=torch.channels_last)
        logits = self.network(images)  # (N, classes)
        loss = F.cross_entropy(logits, self.task.val.targets)
        accuracy = (logits.argmax(dim=1) == self.task.val.targets).float().mean()
        return float(loss), float(accuracy)

    def _backward(self, images: Tensor, labels: Tensor) -> None:
        F.cross_entropy(self.network(images), labels).backward()  # type: ignore[no-untyped-call]


class BareIncubation(BareTraining):
    """A host whose modules train in isolation: one more pass per module, from its place on, host frozen.

    Args:
        host: trained in place; its places stay empty.
        modules: seed module by index of its place.
    """

    def __init__(self, host: SegmentedHost, modules: Mapping[int, nn.Module], nursery: Nursery) -> None:
        self.segments = host.segments
        self.modules = {place: _channels_last(module) for place, module in modules.items()}
        # Where a detached feature meets a GroupNorm first, torch's channels-last kernel crashes: see
        # esper.population.mapping.norms.
        self._contiguous = {place for place, module in modules.items() if normalises_input(module)}
        super().__init__(nn.ModuleList([*self.segments, *self.modules.values()]), nursery)
        self.network = nn.Sequential(*self.segments)

    def _backward(self, images: Tensor, labels: Tensor) -> None:
        arrived, feature = [], images
        for segment in self.segments:
            feature = segment(feature)
            arrived.append(feature)
        losses = [F.cross_entropy(feature, labels)]
        self.segments.requires_grad_(False)  # the main pass is recorded already: this freezes what follows
        for place, module in self.modules.items():
            feature = arrived[place].detach()
            feature = module(feature.contiguous() if place in self._contiguous else feature)
            for segment in self.segments[place + 1 :]:
                feature = segment(feature)
            losses.append(F.cross_entropy(feature, labels))
        self.segments.requires_grad_(True)
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]


class BareLife(BareTraining):
    """A host and one module through its life: the passes that Esper makes, written by hand.

    Below alpha 1 the module is blended in by ADD; at alpha 0 it trains in a pass of its own on the detached feature. In
    validation the suffix is run once more, with the module if it is off and without it if it is on.

    Args:
        host: trained in place; its places stay empty.
        place: index of the module's place.
        module: the module.
        nursery: data and training.
    """

    def __init__(self, host: SegmentedHost, place: int, module: nn.Module, nursery: Nursery) -> None:
        self.head, self.module = nn.Sequential(*host.segments[: place + 1]), module
        self.tail = nn.Sequential(*host.segments[place + 1 :])
        self.alpha = 0.0
        super().__init__(nn.ModuleList([self.head, module, self.tail]), nursery)

    def validate(self) -> tuple[float, float]:
        """Mean loss over the validation split as the host is, and with the module switched over."""
        images = self.task.val.inputs.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            feature = self.head(images)
            grown = self.tail(self._standing(feature) if self.alpha else self.module(feature))
            losses = [F.cross_entropy(logits, self.task.val.targets) for logits in (self.tail(feature), grown)]
        return float(losses[0]), float(losses[1])

    def _standing(self, feature: Tensor) -> Tensor:
        grown: Tensor = self.module(feature)
        return grown if self.alpha == 1.0 else torch.lerp(feature, grown, self.alpha)

    def _backward(self, images: Tensor, labels: Tensor) -> None:
        feature = self.head(images)
        if self.alpha:
            loss = F.cross_entropy(self.tail(self._standing(feature)), labels)
        else:
            loss = F.cross_entropy(self.tail(feature), labels)
            self.tail.requires_grad_(False)  # the main pass is recorded already: this freezes what follows
            loss = loss + F.cross_entropy(self.tail(self.module(feature.detach())), labels)
            self.tail.requires_grad_(True)
        loss.backward()  # type: ignore[no-untyped-call]


def bare_network(host: SegmentedHost) -> nn.Sequential:
    """A copy of a host without places: its layers in a row."""
    layers: list[nn.Module] = []
    for segment in host.segments:
        layers += list(segment.children())
    return nn.Sequential(*copy.deepcopy(layers))


def _channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
