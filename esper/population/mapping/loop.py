"""The reference mapping: one copy after the other, channels-last. Also the fastest on CPU for all but tiny maps.

Features are a list with one tensor ``[B, ...]`` per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import blend
from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Index, Program
from esper.population.mapping.norms import normalises_input, safe_norm_input
from esper.population.mapping.straight_through import straight_through


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of a module's parameters, where a copy's own are set during a call.

    Like ``torch.func.functional_call``, but with the positions computed once: on small networks that costs more than
    the layers.

    Attributes:
        module: module to call with the parameters of each copy in turn.
        names: (owner, name there, position in the layout) of every use of a parameter, tied ones included.
        normalises_input: see :func:`esper.population.mapping.norms.normalises_input`.
    """

    module: nn.Module
    names: tuple[tuple[nn.Module, str, int], ...]
    normalises_input: bool

    @classmethod
    def of(cls, module: nn.Module) -> Places:
        """Find the positions in a module."""
        position = {id(parameter): number for number, parameter in enumerate(module.parameters())}
        names = tuple(
            (owner, name, position[id(parameter)])
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False)
        )
        return cls(module, names, normalises_input(module))

    def call(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Run the module on ``x`` with these parameters, in the order of its layout, instead of its own."""
        own = [owner._parameters[name] for owner, name, _ in self.names]
        try:
            for owner, name, number in self.names:
                owner._parameters[name] = parameters[number]  # type: ignore[assignment]
            result: Tensor = self.module(x)
            return result
        finally:
            for (owner, name, _), parameter in zip(self.names, own, strict=True):
                owner._parameters[name] = parameter


def _unbind(parameters: Tensor) -> Sequence[Tensor]:
    # The common case of one row needs no backward that stacks.
    return [parameters.squeeze(0)] if len(parameters) == 1 else parameters.unbind(0)


class LoopMapping:
    """Mapping that runs the module once per row."""

    name = "loop"
    one_by_one = True

    def prepare(self, module: nn.Module) -> Program:
        return Program(module, ParameterLayout.of(module), compiled=Places.of(module))

    def settle(self, program: Program) -> Program:
        return program

    def pack(self, x: Tensor) -> list[Tensor]:
        return [_channels_last(row) for row in x.unbind(0)]

    def share(self, x: Tensor, num_rows: int) -> list[Tensor]:
        return [_channels_last(x)] * num_rows

    def unpack(self, features: list[Tensor]) -> Tensor:
        # The common case of one row needs no copy.
        return features[0].unsqueeze(0) if len(features) == 1 else torch.stack(features)

    def call(
        self,
        program: Program,
        parameters: Tensor,
        features: list[Tensor],
        frozen: Tensor | None = None,
        parts: Sequence[int] = (),
    ) -> list[Tensor]:
        places: Places = program.compiled
        if places.normalises_input:
            features = [safe_norm_input(x) for x in features]
        rows = [*_unbind(parameters), *(() if frozen is None else _unbind(frozen))]
        return [
            places.call(list(program.layout.unflatten(row).values()), x) for row, x in zip(rows, features, strict=True)
        ]

    def select(self, features: list[Tensor], rows: Index) -> list[Tensor]:
        return [features[row] for row in rows.items]

    def split(self, features: list[Tensor], counts: Sequence[int]) -> list[list[Tensor]]:
        ends = list(accumulate(counts))
        return [features[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def join(self, parts: Sequence[list[Tensor]]) -> list[Tensor]:
        return [row for part in parts for row in part]

    def blend(
        self,
        inputs: list[Tensor],
        outputs: list[Tensor],
        alpha: Tensor | float,
        algorithm: BlendAlgorithm,
        gate: list[Tensor] | None,
    ) -> list[Tensor]:
        gates = [None] * len(inputs) if gate is None else gate
        alphas = [alpha] * len(inputs) if isinstance(alpha, float) else alpha
        return [blend(x, s, a, algorithm, g) for x, s, a, g in zip(inputs, outputs, alphas, gates, strict=True)]

    def replace(self, features: list[Tensor], rows: Index, new: list[Tensor]) -> list[Tensor]:
        replaced = list(features)
        for row, x in zip(rows.items, new, strict=True):
            replaced[row] = x
        return replaced

    def add(self, features: list[Tensor], rows: Index, plus: list[Tensor], minus: list[Tensor]) -> list[Tensor]:
        summed = list(features)
        for row, a, b in zip(rows.items, plus, minus, strict=True):
            summed[row] = features[row] + (a - b)
        return summed

    def straight_through(self, features: list[Tensor], rows: Index, standing: list[Tensor]) -> list[Tensor]:
        passed = list(features)
        for row, x in zip(rows.items, standing, strict=True):
            passed[row] = straight_through(features[row], x)
        return passed

    def detach(self, features: list[Tensor]) -> list[Tensor]:
        return [row.detach() for row in features]

    def tensors(self, features: list[Tensor]) -> list[Tensor]:
        return list(features)

    def from_tensors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)
