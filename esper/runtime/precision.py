"""Automatic mixed precision: which type forward passes compute in, and whether a device can.

Parameters, optimizer state, losses, scores and statistics stay in fp32 whatever the precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from esper.runtime.devices import device_name

AUTOCAST_DTYPES: dict[str, torch.dtype | None] = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Values of ``amp``, and the type that matrix products and convolutions then compute in."""


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Context in which forward passes compute in ``dtype``; ``None`` changes nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def policy_scaler(device: torch.device, dtype: torch.dtype | None) -> torch.amp.GradScaler | None:
    """Loss scaler of the policy's optimizer: fp16 alone needs one.

    Hosts have scales of their own (:mod:`esper.population.scaling`), for one host's overflow is no other's business.
    """
    return torch.amp.GradScaler(device.type) if dtype is torch.float16 else None


def check_amp(amp: str, device: torch.device) -> None:
    """Refuse a precision that the device does not have.

    Raises:
        ValueError: names the value, the device and what works there.
    """
    if not supported(amp, device):
        choices = " or ".join(f"amp={name}" for name in AUTOCAST_DTYPES if name != amp and supported(name, device))
        raise ValueError(f"amp={amp} does not work on this device ({device_name(device)}); use {choices}")


@cache
def supported(amp: str, device: torch.device) -> bool:
    """Whether the device can train in a precision: found out by training something tiny in it."""
    dtype = AUTOCAST_DTYPES[amp]
    if dtype is None:
        return True
    if device.type == "cuda" and dtype is torch.bfloat16:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return False
    try:
        _train_something(device, dtype)
    except RuntimeError:  # what torch raises where a kernel is missing
        return False
    return True


def _train_something(device: torch.device, dtype: torch.dtype) -> None:
    """Forward and backward of each kind of layer that hosts and the policy are made of, and the policy's way to act."""
    with torch.random.fork_rng(devices=[]):  # initialisation draws, and a check must not move the global generator
        conv, norm = nn.Conv2d(2, 2, 3, padding=1), nn.GroupNorm(1, 2)
        layer_norm, lstm = nn.LayerNorm(4), nn.LSTM(4, 4, batch_first=True)
    layers = nn.ModuleList([conv, norm, layer_norm, lstm]).to(device)

    def forward() -> Tensor:
        features = norm(conv(torch.ones(3, 2, 4, 4, device=device))).flatten(2)  # (3, 2, 16)
        # Through a LayerNorm, as in the policy: whether a CPU's LSTM works depends on the type that comes out of it.
        sequence = layer_norm(torch.bmm(features, torch.ones(3, 16, 4, device=device)))  # (3, 2, 4)
        state = torch.zeros(1, 3, 4, device=device)
        output: Tensor = lstm(sequence, (state, state))[0]
        return output.float().sum()

    with autocast(device, dtype):
        total = forward()
        with torch.no_grad():
            forward()
    torch.autograd.grad(total, list(layers.parameters()))
