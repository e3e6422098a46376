"""Seed modules for networks of vectors, ``[B, C] -> [B, C]``: those of transformers that treat tokens independently."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from esper.blueprints.transformer import lora as token_lora
from esper.blueprints.transformer import mlp as token_mlp
from esper.blueprints.transformer import mlp_small as token_mlp_small
from esper.blueprints.transformer.norm import scaled_norm
from esper.growth.layouts import Layout


def norm(channels: int) -> nn.Module:
    """Build a residual branch of a LayerNorm: three parameters per channel, with its scale."""
    return scaled_norm(channels, Layout.VECTOR)


def lora(channels: int) -> nn.Module:
    """Build a residual branch of a linear map of rank 8."""
    return token_lora.low_rank(channels, token_lora.RANK, Layout.VECTOR)


def mlp_small(channels: int) -> nn.Module:
    """Build a residual branch of LayerNorm and an MLP with 2 C hidden units."""
    return token_mlp.norm_mlp(channels, token_mlp_small.EXPANSION, Layout.VECTOR)


def mlp(channels: int) -> nn.Module:
    """Build a residual branch of LayerNorm and an MLP with 4 C hidden units."""
    return token_mlp.norm_mlp(channels, token_mlp.EXPANSION, Layout.VECTOR)


BUILDERS: dict[str, Callable[[int], nn.Module]] = {"norm": norm, "lora": lora, "mlp_small": mlp_small, "mlp": mlp}
