"""LayerNorm and causal self-attention."""

from __future__ import annotations

from torch import nn

from esper.blueprints.residual import layers_residual
from esper.hosts.attention import CausalAttention

NUM_HEADS = 4


def build(channels: int) -> nn.Module:
    """Build a residual branch of causal attention with four heads that read all earlier tokens.

    Raises:
        ValueError: four does not divide the width.
    """
    return norm_attention(channels)


def norm_attention(channels: int, window: int | None = None) -> nn.Module:
    """Build a residual branch of LayerNorm, projections, causal attention and an output projection.

    ``window`` is that of :class:`~esper.hosts.attention.CausalAttention`.
    """
    return layers_residual(
        channels,
        nn.LayerNorm(channels),
        # Without bias: that of a key adds the same to all scores of a query, and would never have a gradient.
        nn.Linear(channels, 3 * channels, bias=False),
        CausalAttention(channels, NUM_HEADS, window),
        nn.Linear(channels, channels, bias=False),
    )
