"""Minibatches of all hosts at once, gathered on the device from shared samples.

Axis legend: E = environments, B = samples of one host's minibatch, N = samples, K = draws of an augmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.tasks.augment import Augmentation

Prepare = Callable[[Tensor], Tensor]
"""Function that converts stored inputs, with any leading axes, to the inputs of hosts."""


def as_stored(inputs: Tensor) -> Tensor:
    """Return inputs unchanged, for data that needs no preparation."""
    return inputs


@dataclass(frozen=True, slots=True)
class TrainingSamples:
    """Samples that all hosts train on, and gathering of each host's minibatch.

    Attributes:
        inputs: ``[N, ...]``, as stored.
        targets: ``[N, ...]``, or ``[E, N, ...]`` if ``own_targets``.
        own_targets: true if every host has its own targets.
        prepare: function that converts stored inputs to the inputs of hosts.
        augmentation: augmentation of images; ``None`` if images are not augmented.
    """

    inputs: Tensor
    targets: Tensor
    own_targets: bool = False
    prepare: Prepare = as_stored
    augmentation: Augmentation | None = None

    def batch(self, index: Tensor, hosts: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Gather a minibatch of each host.

        Args:
            index: sample indices ``int64 [E, B]``; with an augmentation ``[E, B, 1 + K]``, including its K draws per
                sample.
            hosts: slice of the environments that these rows belong to.

        Returns:
            Inputs ``[E, B, ...]`` and targets ``int64 [E, B, ...]``.
        """
        if self.augmentation is None:
            samples = index
            x = self.prepare(take_inputs(self.inputs, samples))
        else:
            samples, draws = index[..., 0], index[..., 1:]
            x = self.augmentation.blank(self.prepare(self.augmentation.take(self.inputs, samples, draws)), draws)
        if not self.own_targets:
            return x, self.targets[samples].long()
        environments = torch.arange(len(samples), device=samples.device)[:, None]
        return x, self.targets[hosts][environments, samples].long()


def take_inputs(inputs: Tensor, index: Tensor) -> Tensor:
    """Gather ``inputs[index]`` with the kernel that copies whole samples, several times faster than a general gather.

    Needs contiguous samples; the result has the layout of ``inputs``.

    Args:
        inputs: ``[N, ...]``.
        index: ``int64 [E, B]``.

    Returns:
        ``[E, B, ...]``.
    """
    if inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last):
        taken = inputs.permute(0, 2, 3, 1).index_select(0, index.flatten()).permute(0, 3, 1, 2)
    else:
        taken = inputs.index_select(0, index.flatten())
    return taken.view(*index.shape, *inputs.shape[1:])
