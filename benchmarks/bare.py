"""The baseline: hosts trained one after the other with plain PyTorch, channels-last, without Esper.

Axis legend: B = batch, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.envs.loader import InstanceLoader
from esper.hosts import SegmentedHost
from esper.population.mapping.norms import normalises_input


class BareTraining:
    """A network with its own optimizer, trained by plain PyTorch.

    Args:
        network: network to train, changed in place.
        loader: data on the CPU and training settings of the hosts.
    """

    def __init__(self, network: nn.Module, loader: InstanceLoader) -> None:
        self.network, training = _channels_last(network), loader.training
        # Fused is PyTorch's fastest Adam for a small network: a baseline must not be easy to beat.
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=training.lr, fused=True)
        self.task, self.batch_size, self.steps_per_epoch = loader.task, training.batch_size, training.steps_per_epoch

    def epoch(self) -> None:
        """Train one epoch in random order, then validate."""
        count = self.batch_size * self.steps_per_epoch
        for batch in torch.randperm(len(self.task.train))[:count].view(-1, self.batch_size).unbind():
            self.step(batch)
        self.validate()

    def step(self, batch: Tensor) -> None:
        """Take one optimizer step on the samples with indices ``int64 [B]``."""
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
    """A host whose modules train in isolation: for each module, one extra pass from its place on, with the host frozen.

    Args:
        host: host to train in place; its places stay empty.
        modules: seed module by index of its place.
    """

    def __init__(self, host: SegmentedHost, modules: Mapping[int, nn.Module], loader: InstanceLoader) -> None:
        self.segments = host.segments
        self.modules = {place: _channels_last(module) for place, module in modules.items()}
        # Where a detached feature meets a GroupNorm first, torch's channels-last kernel crashes: see
        # esper.population.mapping.norms.
        self._contiguous = {place for place, module in modules.items() if normalises_input(module)}
        super().__init__(nn.ModuleList([*self.segments, *self.modules.values()]), loader)
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
    """A host and one module through its whole life, in hand-written passes equivalent to Esper's.

    Below alpha 1 the module is blended in by ADD; at alpha 0 it trains in a separate pass on the detached feature.
    Validation runs the suffix twice: with the module and without it.

    Args:
        host: host to train in place; its places stay empty.
        place: index of the module's place.
        module: seed module.
        loader: data and training settings.
    """

    def __init__(self, host: SegmentedHost, place: int, module: nn.Module, loader: InstanceLoader) -> None:
        self.head, self.module = nn.Sequential(*host.segments[: place + 1]), module
        self.tail = nn.Sequential(*host.segments[place + 1 :])
        self.alpha = 0.0
        super().__init__(nn.ModuleList([self.head, module, self.tail]), loader)

    def validate(self) -> tuple[float, float]:
        """Return the mean validation loss of the host as it is, and with the module switched on if it was off or off if
        it was on.
        """
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
    """Copy a host into one ``nn.Sequential``, without places."""
    layers: list[nn.Module] = []
    for segment in host.segments:
        layers += list(segment.children())
    return nn.Sequential(*copy.deepcopy(layers))


def _channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
