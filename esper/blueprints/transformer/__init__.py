"""Seed modules for transformers, ``[B, T, C] -> [B, T, C]``; no token sees a later one."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from esper.blueprints.transformer import attention, flex_attention, lora, lora_large, mlp, mlp_small, norm

BUILDERS: dict[str, Callable[[int], nn.Module]] = {
    "attention": attention.build,
    "norm": norm.build,
    "lora": lora.build,
    "lora_large": lora_large.build,
    "mlp_small": mlp_small.build,
    "mlp": mlp.build,
    "flex_attention": flex_attention.build,
}
