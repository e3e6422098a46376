"""Causal self-attention without parameters, used between the projections of hosts and blueprints.

Axis legend: B = samples, H = heads, T = tokens, D = channels of a head, C = H * D, R = rows of a mapping.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Causal self-attention, in which every token reads itself and earlier ones.

    ``[B, T, 3 C] -> [B, T, C]``, from queries, keys and values side by side.

    Args:
        width: C.
        num_heads: H.
        window: number of tokens that each token reads, itself included; ``None`` for all.

    Raises:
        ValueError: the number of heads does not divide the width.
    """

    def __init__(self, width: int, num_heads: int, window: int | None = None) -> None:
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"attention of {num_heads} heads needs a width that {num_heads} divides, got {width}")
        self.num_heads = num_heads
        self.window = window

    def forward(self, qkv: Tensor) -> Tensor:
        heads = qkv.reshape(qkv.shape[0], qkv.shape[1], 3, self.num_heads, -1)  # (B, T, 3, H, D)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
        return attend(q, k, v, self.window).transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        """Show heads and window in ``repr``, which identifies a calibrated host."""
        return f"num_heads={self.num_heads}, window={self.window}"


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Compute causal attention with torch's fused kernels, for ``q``, ``k`` and ``v`` of shape ``[B, H, T, D]``.

    The kernels need exactly one axis of samples, and torch has no ``vmap`` rule for the CPU's kernel or for masks (it
    loops over rows, with a warning). Under ``vmap``, rows are therefore folded into samples, which is exact because
    attention has no parameters.
    """
    # There is no public test for an active transform; torch.compile handles vmap itself.
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        folded: Tensor = _Folded.apply(q, k, v, window)  # type: ignore[no-untyped-call]
        return folded
    if window is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    # An export traces tensors without values, of which none may be kept for later calls.
    mask = sliding_window.__wrapped__ if torch.compiler.is_exporting() else sliding_window
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2], window, q.device))


class _Folded(torch.autograd.Function):
    """:func:`attend` with a ``vmap`` rule; the folded call computes the gradients, so there is no ``backward`` here."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Compute attention without a row axis."""
        return attend(q, k, v, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing, because there is no ``backward``."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor, v: Tensor, window: int | None
    ) -> tuple[Tensor, int]:
        """Fold rows into samples: ``[R, B, H, T, D]`` becomes ``[R * B, H, T, D]``."""
        rows = info.batch_size

        def fold(x: Tensor, axis: int | None) -> Tensor:
            stacked = x.unsqueeze(0).expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)
            return stacked.flatten(0, 1)

        out = attend(fold(q, in_dims[0]), fold(k, in_dims[1]), fold(v, in_dims[2]), window)
        return out.view(rows, -1, *out.shape[1:]), 0


@lru_cache(maxsize=16)
def sliding_window(length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask ``bool [T, T]``: the row's token reads the column's, one of the last ``window`` up to itself."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril() & ones.triu(1 - window)
