"""Straight-through estimator: the value of one tensor, with the gradient passed to two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class StraightThrough(torch.autograd.Function):
    """The function ``straight_through(x, standing, axis, rows)``: returns x; its gradient goes to x, and its rows' to
    ``standing``.

    No arithmetic on whole features and no value of ``standing`` is involved: x keeps its bits whatever ``standing``
    holds.
    """

    @staticmethod
    def forward(x: Tensor, standing: Tensor, axis: int, rows: Tensor | None) -> Tensor:
        """Return ``x``; ``rows`` are the rows of x along ``axis`` that ``standing`` belongs to (``None``: all)."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save axis and rows for the backward."""
        ctx.axis, ctx.rows = inputs[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the same gradient for both."""
        own = gradient if ctx.rows is None else gradient.index_select(ctx.axis, ctx.rows)
        return gradient, own, None, None


def straight_through(x: Tensor, standing: Tensor, axis: int = 0, rows: Tensor | None = None) -> Tensor:
    """Apply :class:`StraightThrough`, with types."""
    result: Tensor = StraightThrough.apply(x, standing, axis, rows)  # type: ignore[no-untyped-call]
    return result
