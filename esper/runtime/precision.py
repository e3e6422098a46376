"""Automatic mixed precision: types of forward passes, and tests whether a device supports them.

Parameters, optimizer state, losses, scores and statistics stay in fp32 in every precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from esper.runtime.devices import device_name
from esper.runtime.options import Amp


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which forward passes compute in ``dtype``; ``None`` changes nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def policy_scaler(device: torch.device, dtype: torch.dtype | None) -> torch.amp.GradScaler | None:
    """Return the loss scaler of the policy's optimizer, which only fp16 needs.

    Hosts have their own scales (:mod:`esper.population.scaling`), so that one host's overflow does not affect the
    others.
    """
    return torch.amp.GradScaler(device.type) if dtype is torch.float16 else None


def check_amp(amp: Amp, device: torch.device) -> None:
    """Refuse a precision that the device does not support.

    Raises:
        ValueError: it is not supported; the message names the precision, the device and the precisions that work there.
    """
    if not supported(amp, device):
        choices = " or ".join(f"amp={name}" for name in Amp if name != amp and supported(name, device))
        raise ValueError(f"amp={amp} does not work on this device ({device_name(device)}); use {choices}")


@cache
def supported(amp: Amp, device: torch.device) -> bool:
    """Return whether the device can train in a precision, by training a tiny network in it."""
    dtype = amp.dtype
    if dtype is None:
        return True
    if device.type == "cuda" and dtype is torch.bfloat16:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return False
    try:
        _train_something(device, dtype)
    except RuntimeError:  # torch's errors for a missing kernel
        return False
    return True


def _train_something(device: torch.device, dtype: torch.dtype) -> None:
    """Run forward and backward passes of each kind of layer in hosts and policy, and the policy's acting path."""
    with torch.random.fork_rng(devices=[]):  # initialisation draws, and a check must not move the global generator
        conv, norm = nn.Conv2d(2, 2, 3, padding=1), nn.GroupNorm(1, 2)
        layer_norm, lstm = nn.LayerNorm(4), nn.LSTM(4, 4, batch_first=True)
    layers = nn.ModuleList([conv, norm, layer_norm, lstm]).to(device)

    def forward() -> Tensor:
        features = norm(conv(torch.ones(3, 2, 4, 4, device=device))).flatten(2)  # (3, 2, 16)
        # Through a LayerNorm, as in the policy: a CPU's LSTM works for some output types of it only.
        sequence = layer_norm(torch.bmm(features, torch.ones(3, 16, 4, device=device)))  # (3, 2, 4)
        state = torch.zeros(1, 3, 4, device=device)
        output: Tensor = lstm(sequence, (state, state))[0]
        return output.float().sum()

    with autocast(device, dtype):
        total = forward()
        with torch.no_grad():
            forward()
    torch.autograd.grad(total, list(layers.parameters()))
