"""The reference: one copy after the other, channels-last. Also the fastest on CPU for all but tiny maps.

Features are a list with one tensor ``[B, ...]`` per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call

from esper.actions import BlendAlgorithm
from esper.blending import blend
from esper.population.layout import ParameterLayout
from esper.population.mapping.base import Index, Program
from esper.population.mapping.norms import normalises_input, safe_norm_input


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


class LoopMapping:
    """Runs the module once per row."""

    name = "loop"
    one_by_one = True

    def prepare(self, module: nn.Module) -> Program:
        return Program(module, ParameterLayout.of(module), compiled=normalises_input(module))

    def pack(self, x: Tensor) -> list[Tensor]:
        return [_channels_last(row) for row in x.unbind(0)]

    def share(self, x: Tensor, num_rows: int) -> list[Tensor]:
        return [_channels_last(x)] * num_rows

    def unpack(self, features: list[Tensor]) -> Tensor:
        return torch.stack(features)

    def call(self, program: Program, parameters: Tensor, features: list[Tensor]) -> list[Tensor]:
        if program.compiled:
            features = [safe_norm_input(x) for x in features]
        return [
            functional_call(program.module, program.layout.unflatten(row), (x,))
            for row, x in zip(parameters.unbind(0), features, strict=True)
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
        alpha: Tensor,
        algorithm: BlendAlgorithm,
        gate: list[Tensor] | None,
    ) -> list[Tensor]:
        gates = [None] * len(inputs) if gate is None else gate
        return [blend(x, s, a, algorithm, g) for x, s, a, g in zip(inputs, outputs, alpha, gates, strict=True)]

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
            passed[row] = features[row] + (x - x.detach()).nan_to_num(0.0)
        return passed

    def detach(self, features: list[Tensor]) -> list[Tensor]:
        return [row.detach() for row in features]

    def tensors(self, features: list[Tensor]) -> list[Tensor]:
        return list(features)

    def from_tensors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)
