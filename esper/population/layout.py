"""Flat rows: all parameters of a module in one vector, so that an optimizer step needs only a few kernels.

Axis legend: R = rows (copies of the module), P = parameters of one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from esper.runtime.contracts import known_cause


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Names, shapes and order of a module's parameters inside one flat row of ``size`` numbers.

    ``trained`` holds a flag for each; the others (``requires_grad=False``) never change and count neither as parameters
    nor in rent.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]
    trained: tuple[bool, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ParameterLayout:
        """Make the layout of a module's parameters, in the order of ``named_parameters``.

        Raises:
            ValueError: the module holds a layer that depends on other samples or on hidden random state, such as
                BatchNorm or Dropout, and so cannot be mapped exactly.
        """
        cause = known_cause(module)
        if cause is not None:
            name, layer, advice = cause
            raise ValueError(
                f"layer {name!r} is a {type(layer).__name__}, which a population can't train exactly; {advice}"
            )
        parameters = dict(module.named_parameters())
        shapes = tuple(parameter.shape for parameter in parameters.values())
        trained = tuple(parameter.requires_grad for parameter in parameters.values())
        return cls(tuple(parameters), shapes, tuple(prod(shape) for shape in shapes), trained)

    @property
    def size(self) -> int:
        """Number of parameters of one copy, P."""
        return sum(self.sizes)

    @property
    def num_trained(self) -> int:
        """Number of trained parameters of one copy."""
        return sum(size for size, trained in zip(self.sizes, self.trained, strict=True) if trained)

    def frozen(self) -> Tensor | None:
        """Mask of the columns that are never trained, ``bool [P]``; ``None`` if all are."""
        if all(self.trained):
            return None
        return ~torch.tensor(self.trained).repeat_interleave(torch.tensor(self.sizes))

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Split ``[..., P]`` into ``{name: [..., *shape]}`` views."""
        pieces = torch.split(flat, list(self.sizes), dim=-1) if self.sizes else ()
        leading = flat.shape[:-1]
        return {
            name: piece.reshape((*leading, *shape))
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }


def flatten_parameters(module: nn.Module) -> Tensor:
    """Return the module's present parameters as one row ``[P]``, detached."""
    parameters = [parameter.detach().reshape(-1) for parameter in module.parameters()]
    return torch.cat(parameters) if parameters else torch.empty(0)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a host's row that each of its sections reads; several sections read a tied parameter.

    Attributes:
        widths: lengths of the pieces that a row is divided into.
        pieces: numbers of the pieces that make up each section's own row, in order.
    """

    widths: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, whole: nn.Module, sections: Sequence[nn.Module]) -> Columns:
        """Find the columns of sections that share the parameters of the whole."""
        begin, spans = 0, {}
        for parameter in whole.parameters():
            spans[id(parameter)] = begin, begin + parameter.numel()
            begin += parameter.numel()
        runs = [_runs([spans[id(parameter)] for parameter in section.parameters()]) for section in sections]
        cuts = sorted({0, begin} | {edge for section in runs for run in section for edge in run})
        starts = cuts[:-1]
        return cls(
            widths=tuple(stop - start for start, stop in pairwise(cuts)),
            pieces=tuple(
                tuple(number for low, high in section for number, start in enumerate(starts) if low <= start < high)
                for section in runs
            ),
        )

    def split(self, rows: Tensor) -> list[Tensor]:
        """Divide rows ``[R, P]`` into those of each section; views unless parameters are tied."""
        # One split of all columns: its backward is one concatenation, that of slices a padded copy each.
        cut = torch.split(rows, list(self.widths), dim=1)
        return [
            cut[numbers[0]] if len(numbers) == 1 else torch.cat([rows[:, :0], *(cut[number] for number in numbers)], 1)
            for numbers in self.pieces
        ]


def _runs(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join consecutive spans that are adjacent."""
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        elif high > low:
            joined.append((low, high))
    return joined


def settle_buffers(module: nn.Module, device: torch.device) -> None:
    """Move a prototype's buffers to the device where it will run. Of its parameters only the shapes are used."""
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            owner._buffers[name] = buffer.to(device)
