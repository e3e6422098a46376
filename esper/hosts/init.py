"""Deterministic initialisation of hosts and seed modules from an explicit generator."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Initialisable(Protocol):
    """A module that initialises its own parameters (a gate, a residual scale, a user's layer)."""

    def initialise(self, generator: torch.Generator) -> None:
        """Set the module's own parameters, not those of its children."""


@torch.no_grad()
def draw_uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill a parameter uniformly from -bound to +bound."""
    parameter.copy_(_empty(parameter, generator).uniform_(-bound, bound, generator=generator))


@torch.no_grad()
def draw_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill a parameter from a normal distribution around 0."""
    parameter.copy_(_empty(parameter, generator).normal_(0.0, std, generator=generator))


def _empty(parameter: Tensor, generator: torch.Generator) -> Tensor:
    # Drawn in float32 on the generator's device, so that a float64 or a CUDA copy starts from the same numbers.
    return torch.empty(parameter.shape, dtype=torch.float32, device=generator.device)


@torch.no_grad()
def reset_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Initialise every parameter of a module in place, from ``generator`` alone.

    Convolutions and linear layers: uniform in +-1/sqrt(fan_in), weights and biases (torch's default, He et al. 2015
    with a = sqrt 5). GroupNorm and LayerNorm: 1 and 0. Modules with an ``initialise`` method initialise themselves.
    dtype and device of the parameters are kept.

    Raises:
        ValueError: a submodule owns parameters but is none of the above.
    """
    for name, child in module.named_modules():
        if isinstance(child, Initialisable):
            child.initialise(generator)
        elif isinstance(child, nn.Conv2d | nn.Linear):
            bound = 1.0 / math.sqrt(child.weight[0].numel())
            draw_uniform(child.weight, bound, generator)
            if child.bias is not None:
                draw_uniform(child.bias, bound, generator)
        elif isinstance(child, nn.GroupNorm | nn.LayerNorm):
            if child.weight is not None:
                child.weight.fill_(1.0)
            if child.bias is not None:
                child.bias.zero_()
        elif any(True for _ in child.parameters(recurse=False)):
            raise ValueError(
                f"don't know how to initialise {type(child).__name__} (at {name or 'the top'!r}): "
                "give it a method initialise(generator)"
            )
