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

SKETCH = 16
"""Channels to which features and gradients of wider maps are reduced before the weight gradient of a convolution."""

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

    For wide maps it is the norm after a random reduction of both axes of the weight, whose expected square is the same.
    """
    if x.dim() == 4:
        mixed: Tensor = torch.einsum("ebct,ebdt->ecd", gradient, x).flatten(1).norm(dim=1)
        return mixed
    if _is_wide(x):
        x, gradient = _reduced(x, "input"), _reduced(gradient, "output")
    num_envs, _, channels = x.shape[:3]
    # Environments are groups of one convolution.
    stacked = [tensor.transpose(0, 1).flatten(1, 2) for tensor in (x, gradient)]  # (B, E*C, H, W)
    inputs, outputs = (tensor.contiguous(memory_format=torch.channels_last) for tensor in stacked)
    size = (num_envs * channels, channels, 3, 3)
    weight: Tensor = conv2d_weight(inputs, size, outputs, padding=1, groups=num_envs)  # type: ignore[no-untyped-call]
    norm: Tensor = weight.reshape(num_envs, -1).norm(dim=1)
    return norm


def _is_wide(x: Tensor) -> bool:
    return x.dim() == 5 and x.shape[2] > SKETCH


def _reduced(x: Tensor, axis: str) -> Tensor:
    """Add up channels with random signs, ``[E, B, SKETCH, H, W]``."""
    total, *others = torch.split(x, SKETCH, dim=2)
    signs = _signs(axis, x.shape[2], x.dtype, x.device)
    for number, part in enumerate(others):
        missing = SKETCH - part.shape[2]
        whole = F.pad(part, (0, 0, 0, 0, 0, missing)) if missing else part
        total = torch.addcmul(total, whole, signs[number])
    return total


@cache
def _signs(axis: str, channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a sign for each channel but the first :data:`SKETCH`, ``[parts, SKETCH, 1, 1]``; always the same."""
    parts = (channels - 1) // SKETCH
    drawn = torch.randint(2, (parts, SKETCH, 1, 1), generator=generator("slot probe", axis, channels))
    return (2 * drawn - 1).to(device, dtype)


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
      by the number of channels; in maps of more than :data:`SKETCH` channels of every n-th sample, which leaves about
      :data:`POSITIONS` positions;
    * ``log_gradient_norm``: log10 of the norm of the loss gradient at the slot;
    * ``log_first_order_gain``: log10 of the norm of the loss gradient for a 3x3 convolution that would be added at the
      slot and is zero now, of a linear map in a sequence (the quantity that GradMax, Evci et al. 2022, maximises over
      new weights). For maps of more than :data:`SKETCH` channels it is estimated: about 0.015 off.

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
