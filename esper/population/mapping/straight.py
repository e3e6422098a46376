"""Straight-through: one value forward, the gradient to two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class StraightThrough(torch.autograd.Function):
    """``straight_through(x, standing, axis, rows)`` is x; its gradient goes to x, and its rows' also to ``standing``.

    Neither arithmetic on whole features nor a value of ``standing`` enters: x keeps its bits whatever stands there.
    """

    @staticmethod
    def forward(x: Tensor, standing: Tensor, axis: int, rows: Tensor | None) -> Tensor:
        """Args: ``x`` and ``standing``; the axis of rows, and which of x's rows stand there (``None``: all)."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the backward needs."""
        ctx.axis, ctx.rows = inputs[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The same gradient for both."""
        own = gradient if ctx.rows is None else gradient.index_select(ctx.axis, ctx.rows)
        return gradient, own, None, None


def straight_through(x: Tensor, standing: Tensor, axis: int = 0, rows: Tensor | None = None) -> Tensor:
    """:class:`StraightThrough`, typed."""
    result: Tensor = StraightThrough.apply(x, standing, axis, rows)  # type: ignore[no-untyped-call]
    return result
