"""Flat rows: all parameters of a module side by side, so that an owner's optimizer step is a handful of kernels.

Axis legend: R = rows (copies of the module), P = parameters of one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

# Layers whose result depends on more than one sample, or on hidden random state: they can't be mapped exactly.
REFUSED_LAYERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.modules.dropout._DropoutNd,
)


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Names, shapes and order of a module's parameters inside one flat row of ``size`` numbers."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ParameterLayout:
        """Layout of a module's parameters, in the order of ``named_parameters``.

        Raises:
            ValueError: the module holds BatchNorm, InstanceNorm with running statistics, or Dropout.
        """
        for name, layer in module.named_modules():
            if isinstance(layer, REFUSED_LAYERS):
                raise ValueError(
                    f"layer {name!r} is a {type(layer).__name__}, which a population can't train exactly; "
                    "use GroupNorm or LayerNorm, and no dropout"
                )
        parameters = dict(module.named_parameters())
        shapes = tuple(parameter.shape for parameter in parameters.values())
        return cls(tuple(parameters), shapes, tuple(prod(shape) for shape in shapes))

    @property
    def size(self) -> int:
        """Parameters of one copy, P."""
        return sum(self.sizes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Split ``[..., P]`` into ``{name: [..., *shape]}`` views."""
        pieces = torch.split(flat, list(self.sizes), dim=-1) if self.sizes else ()
        leading = flat.shape[:-1]
        return {
            name: piece.reshape(*leading, *shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }


def flatten_parameters(module: nn.Module) -> Tensor:
    """The module's present parameters as one row ``[P]``, detached."""
    parameters = [parameter.detach().reshape(-1) for parameter in module.parameters()]
    return torch.cat(parameters) if parameters else torch.empty(0)
