"""Blending of a seed module's output into the host's feature, and the curves along which alpha moves.

Axis legend: B = samples, C = channels, H, W = space, T = tokens; ``...`` holds either of the last two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from esper.growth.actions import BlendAlgorithm
from esper.growth.layouts import Layout

SIGMOID_STEEPNESS: tuple[float, float, float] = (6.0, 12.0, 24.0)
"""Steepness of the curves SIGMOID_GENTLE, SIGMOID and SIGMOID_SHARP."""

GATE_BIAS_AT_BIRTH = 2.0


def _sigmoid_ramp(progress: Tensor, steepness: float) -> Tensor:
    # sigmoid(k (p - 1/2)), shifted and scaled to run from 0 to 1; the tanh form has no cancellation.
    return 0.5 * (1.0 + torch.tanh(steepness / 2 * (progress - 0.5)) / math.tanh(steepness / 4))


def curve(progress: Tensor, curve: Tensor) -> Tensor:
    """Return the completed share of an alpha ramp.

    Args:
        progress: ``float [...]``, elapsed / duration in [0, 1].
        curve: ``int64 [...]``, indices of :class:`~esper.growth.actions.AlphaCurve`, same shape.

    Returns:
        ``float [...]``, exactly 0 where progress is 0 and exactly 1 where it is 1; non-decreasing in progress.
    """
    shapes = torch.stack(
        (
            progress,
            0.5 * (1.0 - torch.cos(math.pi * progress)),
            *(_sigmoid_ramp(progress, steepness) for steepness in SIGMOID_STEEPNESS),
        ),
        dim=-1,
    )
    value = shapes.gather(-1, curve.unsqueeze(-1)).squeeze(-1)
    # Rounding must not leave a finished ramp below its target, or an unstarted one above 0.
    value = torch.where(progress <= 0, torch.zeros_like(value), value)
    return torch.where(progress >= 1, torch.ones_like(value), value)


def blend(x: Tensor, s: Tensor, alpha: Tensor | float, algorithm: BlendAlgorithm, gate: Tensor | None = None) -> Tensor:
    """Blend a seed module's output into the host's feature.

    * ADD: x + alpha (s - x)
    * MULTIPLY: x (1 + alpha tanh(s - x))
    * GATE: x + alpha g (s - x)

    Exactly x at alpha 0 (if s is finite) and wherever s equals x; exactly s under ADD at alpha 1. Computed in at least
    fp32 and returned in the type of ``x``, because a module must not change the precision of later layers.

    Args:
        x: ``float [..., B, C, H, W]`` or ``[..., B, T, C]``, the host feature.
        s: the module's output, same shape; under AMP it may have another type.
        alpha: a number, or a tensor that broadcasts against ``x``.
        algorithm: formula to use.
        gate: in [0, 1], broadcasts against ``x``; for GATE only.

    Raises:
        ValueError: GATE without a gate, or a gate with another algorithm.
    """
    _check_gate(algorithm, gate is not None)
    kept = x.dtype
    full = torch.promote_types(torch.promote_types(kept, s.dtype), torch.float32)
    x, s = x.to(full), s.to(full)
    if algorithm is BlendAlgorithm.MULTIPLY:
        return (x * (1.0 + alpha * torch.tanh(s - x))).to(kept)
    if gate is None and isinstance(alpha, float) and alpha == 1.0:
        return s.to(kept)
    weight = alpha if gate is None else alpha * gate.to(full)
    # Not x + alpha (s - x), which at alpha 1 is s to rounding only.
    return torch.lerp(x, s, weight).to(kept)


def _check_gate(algorithm: BlendAlgorithm, has_gate: bool) -> None:
    if has_gate != (algorithm is BlendAlgorithm.GATE):
        given = "with a gate" if has_gate else "without a gate"
        raise ValueError(f"the GATE algorithm needs a gate and no other takes one; got {algorithm.name} {given}")


class Gate(nn.Module):
    """Gate of the GATE algorithm, per channel and per sample or token; open to sigmoid(2) = 0.88 at birth.

    * maps: sigmoid(weight * mean over space + bias), ``[B, C, H, W] -> [B, C, 1, 1]``;
    * sequences: sigmoid(weight * x + bias), ``[B, T, C] -> [B, T, C]``: a mean over tokens would let earlier ones see
      later ones;
    * vectors: the same, ``[B, C] -> [B, C]``.
    """

    def __init__(self, channels: int, layout: Layout = Layout.MAP) -> None:
        super().__init__()
        self.layout = layout
        self.weight = nn.Parameter(torch.zeros(layout.per_channel(channels)))
        self.bias = nn.Parameter(torch.full(layout.per_channel(channels), GATE_BIAS_AT_BIRTH))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Restore the state at birth; draw no random numbers."""
        self.weight.zero_()
        self.bias.fill_(GATE_BIAS_AT_BIRTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.layout is Layout.MAP:
            x = x.mean((2, 3), keepdim=True)
        return torch.sigmoid(self.weight * x + self.bias)


class BlendedModule(nn.Module):
    """A seed module blended at a fixed alpha, as grown networks contain it.

    Keeps the shape of its input. ``alpha`` is a buffer, so that it is saved with the network.

    Raises:
        ValueError: alpha outside [0, 1], GATE without a gate, or a gate with another algorithm.
    """

    alpha: Tensor

    def __init__(
        self, body: nn.Module, algorithm: BlendAlgorithm, gate: Gate | None = None, alpha: float = 1.0
    ) -> None:
        super().__init__()
        _check_gate(algorithm, gate is not None)
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha={alpha} is outside [0, 1]")
        self.body = body
        self.algorithm = algorithm
        self.gate = gate
        self.register_buffer("alpha", torch.tensor(alpha))

    def forward(self, x: Tensor, alpha: float | None = None) -> Tensor:
        """Blend the module into a feature, at ``alpha`` if given, otherwise at the module's own."""
        gate = None if self.gate is None else self.gate(x)
        return blend(x, self.body(x), self.alpha if alpha is None else alpha, self.algorithm, gate)
