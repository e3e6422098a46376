"""Minibatches of all hosts at once, gathered on the device from samples that they share.

Axis legend: E = environments, B = samples of one host's minibatch, N = samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Prepare = Callable[[Tensor], Tensor]
"""Inputs as hosts read them, from inputs as they are stored; any leading axes."""

Take = Callable[[Tensor, Tensor], Tensor]
"""Inputs as hosts read them ``[E, B, ...]``, from those that are stored ``[N, ...]`` and a batch of them: ``int64
[E, B]`` says which; ``[E, B, 1 + K]`` says which, and what becomes of each."""


def as_stored(inputs: Tensor) -> Tensor:
    """Inputs that need no preparation."""
    return inputs


def take_inputs(inputs: Tensor, index: Tensor) -> Tensor:
    """``inputs[index]`` by the one kernel that copies whole samples: several times faster than a general gather.

    It needs them in one piece each; the result has the layout of ``inputs``.

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


def take_targets(targets: Tensor, index: Tensor, *, own: bool) -> Tensor:
    """Targets of each host's own samples.

    Args:
        targets: ``[N, ...]``, or ``[E, N, ...]`` if ``own``: hosts are told different ones.
        index: a batch, ``int64 [E, B]`` or ``[E, B, 1 + K]``.

    Returns:
        ``int64 [E, B, ...]``.
    """
    index = index if index.dim() == 2 else index[..., 0]
    if not own:
        return targets[index].long()
    environments = torch.arange(len(index), device=index.device)[:, None]
    return targets[environments, index].long()


def told_apart(inputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are ``[E, N, ...]``, each host's own, and not ``[N, ...]`` for all of these inputs."""
    return targets.dim() > (inputs.dim() if inputs.dim() == 2 else 1)
