"""Per-slot evidence about the host, for empty slots too: where is it starved?

Axis legend: E = environments, S = slots, B = batch, C = channels, H, W = space, T = tokens. Features are ``[E, B, C, H,
W]`` or ``[E, B, T, C]`` outside, ``[E, B, C, H, W]`` or ``[E, B, C, T]`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

LOG_FLOOR = 1e-8


def _dead_channels(x: Tensor, gradient: Tensor) -> Tensor:
    return (x.abs().transpose(1, 2).flatten(2).amax(dim=2) <= 0).to(x.dtype).mean(dim=1)


def _effective_rank(x: Tensor, gradient: Tensor) -> Tensor:
    samples = x.transpose(1, 2).flatten(2)  # (E, C, B*H*W) or (E, C, B*T)
    centred = samples - samples.mean(dim=2, keepdim=True)
    covariance = centred @ centred.transpose(1, 2) / centred.shape[2]
    trace = covariance.diagonal(dim1=1, dim2=2).sum(dim=1)
    square = covariance.square().sum(dim=(1, 2))
    return torch.where(square > 0, trace.square() / square.clamp(min=1e-30), 0.0) / x.shape[2]


def _log_gradient_norm(x: Tensor, gradient: Tensor) -> Tensor:
    return _log_scale(gradient.flatten(1).norm(dim=1))


def _log_first_order_gain(x: Tensor, gradient: Tensor) -> Tensor:
    return _log_scale(_first_order_gain(x, gradient))


def _first_order_gain(x: Tensor, gradient: Tensor) -> Tensor:
    """Norm of the weight gradient of a 3x3 convolution with zero padding, or of a linear map of each token, ``[E]``."""
    num_envs, _, channels = x.shape[:3]
    if x.dim() == 4:
        mixed: Tensor = torch.einsum("ebct,ebdt->ecd", gradient, x).flatten(1).norm(dim=1)
        return mixed
    # Environments are groups of one convolution.
    stacked = [tensor.transpose(0, 1).flatten(1, 2) for tensor in (x, gradient)]  # (B, E*C, H, W)
    inputs, outputs = (tensor.contiguous(memory_format=torch.channels_last) for tensor in stacked)
    size = (num_envs * channels, channels, 3, 3)
    weight: Tensor = conv2d_weight(inputs, size, outputs, padding=1, groups=num_envs)  # type: ignore[no-untyped-call]
    norm: Tensor = weight.reshape(num_envs, -1).norm(dim=1)
    return norm


def _log_scale(norm: Tensor) -> Tensor:
    """Norms from 1e-5 to 1e1 on [-1, 1]."""
    return (norm.clamp(min=LOG_FLOOR).log10() + 2.0) / 3.0


_PROBES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dead_channels": _dead_channels,
    "effective_rank": _effective_rank,
    "log_gradient_norm": _log_gradient_norm,
    "log_first_order_gain": _log_first_order_gain,
}

PROBE_NAMES = tuple(_PROBES)
"""Probes of a slot, in the order of the last axis."""

NUM_PROBES = len(PROBE_NAMES)


def chosen_probes(names: Iterable[str]) -> tuple[str, ...]:
    """Some of :data:`PROBE_NAMES`, in their order whatever the order of ``names``.

    Raises:
        ValueError: an unknown name.
    """
    wanted = set(names)
    unknown = sorted(wanted - set(PROBE_NAMES))
    if unknown:
        raise ValueError(f"unknown slot probe {unknown[0]!r}; the probes are {', '.join(PROBE_NAMES)}")
    return tuple(name for name in PROBE_NAMES if name in wanted)


def slot_probes(features: Sequence[Tensor], gradients: Sequence[Tensor], names: Sequence[str] = PROBE_NAMES) -> Tensor:
    """Probes of every slot, each within [-2, 2].

    * ``dead_channels``: share of channels that are zero on the whole batch;
    * ``effective_rank`` of the activations: participation ratio (tr C)^2 / tr C^2 of their channel covariance, divided
      by the number of channels;
    * ``log_gradient_norm``: log10 of the norm of the loss gradient at the slot;
    * ``log_first_order_gain``: log10 of the norm of the loss gradient for a 3x3 convolution that would be added at the
      slot and is zero now, of a linear map in a sequence (the quantity that GradMax, Evci et al. 2022, maximises over
      new weights).

    Args:
        features: per slot ``[E, B, C, H, W]`` or ``[E, B, T, C]``.
        gradients: gradients of the summed per-environment losses for them, same shapes.
        names: which probes, at least one; the others are not computed.

    Returns:
        ``float32 [E, S, len(names)]``.
    """
    slots = []
    for pair in zip(features, gradients, strict=True):
        x, gradient = (tensor.transpose(2, 3) if tensor.dim() == 4 else tensor for tensor in pair)
        slots.append(torch.stack([_PROBES[name](x, gradient) for name in names], dim=1))
    return torch.stack(slots, dim=1).nan_to_num(nan=0.0, posinf=2.0, neginf=-2.0).clamp(-2.0, 2.0).float()
