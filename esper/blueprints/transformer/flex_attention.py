"""LayerNorm and causal self-attention in a sliding window.

Masked ``scaled_dot_product_attention``: torch's ``flex_attention`` has no backward on a CPU, fails under ``vmap``, and
skips nothing in contexts of one or two of its blocks of 128 tokens.
"""

from __future__ import annotations

from torch import nn

from esper.blueprints.transformer.attention import norm_attention

WINDOW = 16


def build(channels: int) -> nn.Module:
    """Build a residual branch of causal attention with four heads that read the last 16 tokens.

    Raises:
        ValueError: four does not divide the width.
    """
    return norm_attention(channels, WINDOW)
