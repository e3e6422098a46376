"""What the stacked mappings share: features are one tensor in which the rows have an axis of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType

import torch
from torch import Tensor

from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import blend
from esper.population.mapping.base import Index, Program, is_all
from esper.population.mapping.straight import straight_through

COMPILED_SUFFIX = "_compiled"
BACKEND = "inductor"


class StackedFeatures(ABC):
    """Row operations on a tensor whose axis ``row_axis`` holds the rows.

    Args:
        compiles: turn the parts of the host into machine code by ``torch.compile``, for the pass that trains all hosts:
            there shapes never change. Seed modules, of which there may be any number from epoch to epoch, other passes
            and validation run as they are. What is compiled depends on the part and on the shapes alone, never on how
            often they were seen: a twin and its environment must compute the same bits.

    CUDA graphs are left out. A graph's outputs live in memory that its next replay overwrites, and here the features
    between parts are kept, for the backward pass, for slot probes, and for the suffixes that start from them.
    """

    name: str
    row_axis: int
    one_by_one = False

    def __init__(self, *, compiles: bool = False) -> None:
        self._compiles = compiles
        self._compiled: dict[tuple[int, ...], Program] = {}
        if compiles:
            self.name += COMPILED_SUFFIX

    def settle(self, program: Program) -> Program:
        if not self._compiles:
            return program
        # Populations of one host share its segments, and what was compiled for them.
        key = tuple(map(id, program.module.children())) or (id(program.module),)
        if key not in self._compiled:
            self._compiled[key] = replace(program, training_call=_compile(self.evaluate, program))
        return self._compiled[key]

    def call(self, program: Program, parameters: Tensor, features: Tensor) -> Tensor:
        if program.training_call is not None and parameters.requires_grad and torch.is_grad_enabled():
            # One layout, or each new one would be compiled for.
            return program.training_call(parameters, features.contiguous())
        return self.evaluate(program, parameters, features)

    @abstractmethod
    def evaluate(self, program: Program, parameters: Tensor, features: Tensor) -> Tensor:
        """:meth:`call` without machine code."""

    def select(self, features: Tensor, rows: Index) -> Tensor:
        if is_all(rows, features.shape[self.row_axis]):
            return features
        return features.index_select(self.row_axis, rows.tensor)

    def split(self, features: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
        return [features] if len(counts) == 1 else torch.split(features, list(counts), dim=self.row_axis)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=self.row_axis)

    def blend(
        self, inputs: Tensor, outputs: Tensor, alpha: Tensor | float, algorithm: BlendAlgorithm, gate: Tensor | None
    ) -> Tensor:
        if isinstance(alpha, float):
            return blend(inputs, outputs, alpha, algorithm, gate)
        shape = [1] * inputs.dim()
        shape[self.row_axis] = -1
        return blend(inputs, outputs, alpha.view(shape), algorithm, gate)

    def replace(self, features: Tensor, rows: Index, new: Tensor) -> Tensor:
        if is_all(rows, features.shape[self.row_axis]):
            return new
        return features.index_copy(self.row_axis, rows.tensor, new)

    def add(self, features: Tensor, rows: Index, plus: Tensor, minus: Tensor) -> Tensor:
        return features.index_add(self.row_axis, rows.tensor, plus - minus)

    def straight_through(self, features: Tensor, rows: Index, standing: Tensor) -> Tensor:
        return straight_through(features, standing, self.row_axis, rows.tensor)

    def detach(self, features: Tensor) -> Tensor:
        return features.detach()

    def tensors(self, features: Tensor) -> list[Tensor]:
        return [features]

    def from_tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]


def _compile(call: Callable[[Program, Tensor, Tensor], Tensor], program: Program) -> Callable[[Tensor, Tensor], Tensor]:
    """``call`` of one program as machine code, once per shape."""

    def run(parameters: Tensor, features: Tensor) -> Tensor:
        return call(program, parameters, features)

    # torch.compile counts recompilations per code object: each program gets one, or they would use up one's limit.
    own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(own, dynamic=False, fullgraph=True, backend=BACKEND)
    return compiled
