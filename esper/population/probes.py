"""Slot probes: statistics of the host at every slot, empty ones included, that show where it is starved.

Axis legend: E = environments, S = slots, B = batch, C = channels, H, W = space, T = tokens. Features are ``[E, B, C, H,
W]`` or ``[E, B, T, C]`` outside, ``[E, B, C, H, W]`` or ``[E, B, C, T]`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from esper.runtime.rng import generator

LOG_FLOOR = 1e-8

ROW = 64
"""Numbers in a row over which a maximum is fast."""

GLANCE = 8
"""Samples that are looked at first for channels that are alive."""

WIDE = 16
"""Channels of the widest maps whose probes are exact."""

POSITIONS = 4096
"""Positions of wider maps, about, from which the covariance of channels is estimated."""


def _dead_channels(x: Tensor, gradient: Tensor) -> Tensor:
    # A channel that is alive in a few samples is alive. On an accelerator, to look at the answer is to wait for it.
    if x.device.type == "cpu" and not _is_dead(x[:, :GLANCE]).any():
        return x.new_zeros(len(x))
    return _is_dead(x).to(x.dtype).mean(dim=1)


def _is_dead(x: Tensor) -> Tensor:
    """Return which channels are zero everywhere, ``bool [E, C]``."""
    rows = x.movedim(2, -1).flatten(1, -2)  # (E, B*H*W, C): a view of channels-last maps
    num_envs, count, channels = rows.shape
    # A maximum over rows as short as the channels is slow; several side by side make a long one.
    beside = gcd(count, max(1, ROW // channels))
    long = rows.reshape(num_envs, -1, beside * channels)
    highest = torch.maximum(long.amax(dim=1), -long.amin(dim=1))
    return highest.view(num_envs, beside, channels).amax(dim=1) <= 0


def _effective_rank(x: Tensor, gradient: Tensor) -> Tensor:
    if _is_wide(x):
        x = x[:, :: min(x.shape[1], max(1, x.shape[1] * x.shape[3] * x.shape[4] // POSITIONS))]
        rows = x.movedim(2, -1).flatten(1, -2)  # (E, B*H*W, C), in the order of memory
        samples = (rows - rows.mean(dim=1, keepdim=True)).transpose(1, 2)
    else:
        samples = x.transpose(1, 2).flatten(2)  # (E, C, B*H*W) or (E, C, B*T)
        samples = samples - samples.mean(dim=2, keepdim=True)
    covariance = samples @ samples.transpose(1, 2) / samples.shape[2]
    trace = covariance.diagonal(dim1=1, dim2=2).sum(dim=1)
    square = covariance.square().sum(dim=(1, 2))
    return torch.where(square > 0, trace.square() / square.clamp(min=1e-30), 0.0) / x.shape[2]


def _log_gradient_norm(x: Tensor, gradient: Tensor) -> Tensor:
    if _is_wide(gradient):  # in the order of memory, where to flatten is to copy; of others the last bits would change
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=tuple(range(1, gradient.dim())))
        return _log_scale(norm)
    return _log_scale(gradient.flatten(1).norm(dim=1))


def _log_first_order_gain(x: Tensor, gradient: Tensor) -> Tensor:
    return _log_scale(_first_order_gain(x, gradient))


def _first_order_gain(x: Tensor, gradient: Tensor) -> Tensor:
    """Norm of the weight gradient of a 3x3 convolution with zero padding, or of a linear map of each token, ``[E]``.

    For wide maps it is the norm after the nine taps of every input channel are added up with random signs: its expected
    square is the same.
    """
    if x.dim() == 4:
        return _norm(torch.einsum("ebct,ebdt->ecd", gradient, x))
    num_envs, _, channels = x.shape[:3]
    if _is_wide(x):
        signs = _signs(channels, x.dtype, x.device)
        summed = F.conv2d(x.flatten(0, 1), signs, padding=1, groups=channels).reshape(x.shape)
        inputs, outputs = (tensor.movedim(2, -1).flatten(1, -2) for tensor in (summed, gradient))  # (E, B*H*W, C)
        return _norm(outputs.transpose(1, 2) @ inputs)
    # Environments are groups of one convolution.
    stacked = [tensor.transpose(0, 1).flatten(1, 2) for tensor in (x, gradient)]  # (B, E*C, H, W)
    inputs, outputs = (tensor.contiguous(memory_format=torch.channels_last) for tensor in stacked)
    size = (num_envs * channels, channels, 3, 3)
    weight: Tensor = conv2d_weight(inputs, size, outputs, padding=1, groups=num_envs)  # type: ignore[no-untyped-call]
    return _norm(weight.reshape(num_envs, -1))


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = values.flatten(1).norm(dim=1)
    return norm


def _is_wide(x: Tensor) -> bool:
    return x.dim() == 5 and x.shape[2] > WIDE


@cache
def _signs(channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a sign for each tap of each channel, ``[C, 1, 3, 3]``; always the same.

    Three of nine are negative: the products of two signs are 0 on average, as if they were independent, and where all
    taps have the same gradient, as in smooth maps, their sum has exactly the norm of all.
    """
    order = torch.rand(channels, 9, generator=generator("slot probe", channels)).argsort(dim=1)
    signs = torch.ones(channels, 9).scatter_(1, order[:, :3], -1.0)
    return signs.view(channels, 1, 3, 3).to(device, dtype)


def _log_scale(norm: Tensor) -> Tensor:
    """Scale norms from 1e-5 to 1e1 logarithmically to [-1, 1]."""
    return (norm.clamp(min=LOG_FLOOR).log10() + 2.0) / 3.0


_PROBES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dead_channels": _dead_channels,
    "effective_rank": _effective_rank,
    "log_gradient_norm": _log_gradient_norm,
    "log_first_order_gain": _log_first_order_gain,
}

PROBE_NAMES = tuple(_PROBES)
"""Names of a slot's probes, in the order of the last axis."""

NUM_PROBES = len(PROBE_NAMES)


def chosen_probes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, without duplicates, in the order of :data:`PROBE_NAMES`.

    Raises:
        ValueError: an unknown name.
    """
    wanted = set(names)
    unknown = sorted(wanted - set(PROBE_NAMES))
    if unknown:
        raise ValueError(f"unknown slot probe {unknown[0]!r}; the probes are {', '.join(PROBE_NAMES)}")
    return tuple(name for name in PROBE_NAMES if name in wanted)


def slot_probes(features: Sequence[Tensor], gradients: Sequence[Tensor], names: Sequence[str] = PROBE_NAMES) -> Tensor:
    """Compute the probes of every slot, each within [-2, 2].

    * ``dead_channels``: share of channels that are zero on the whole batch;
    * ``effective_rank`` of the activations: participation ratio (tr C)^2 / tr C^2 of their channel covariance, divided
      by the number of channels; in maps of more than :data:`WIDE` channels of every n-th sample, which leaves about
      :data:`POSITIONS` positions;
    * ``log_gradient_norm``: log10 of the norm of the loss gradient at the slot;
    * ``log_first_order_gain``: log10 of the norm of the loss gradient for a 3x3 convolution that would be added at the
      slot and is zero now, of a linear map in a sequence (the quantity that GradMax, Evci et al. 2022, maximises over
      new weights). For maps of more than :data:`WIDE` channels it is estimated: about 0.01 off, 0.02 where two channels
      are alive.

    Args:
        features: per slot ``[E, B, C, H, W]`` or ``[E, B, T, C]``.
        gradients: gradients of the summed per-environment losses for them, same shapes.
        names: probes to compute, at least one.

    Returns:
        ``float32 [E, S, len(names)]``.
    """
    slots = []
    for pair in zip(features, gradients, strict=True):
        x, gradient = (tensor.transpose(2, 3) if tensor.dim() == 4 else tensor for tensor in pair)
        slots.append(torch.stack([_PROBES[name](x, gradient) for name in names], dim=1))
    return torch.stack(slots, dim=1).nan_to_num(nan=0.0, posinf=2.0, neginf=-2.0).clamp(-2.0, 2.0).float()
