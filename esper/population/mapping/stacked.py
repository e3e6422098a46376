"""Common base of the stacked mappings: features are one tensor with an axis of rows, by default the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import blend
from esper.population.mapping.base import Index, Program, is_all
from esper.population.mapping.straight_through import straight_through

COMPILED_SUFFIX = "_compiled"
BACKEND = "inductor"


class StackedFeatures(ABC):
    """Base of the mappings whose features are one tensor, with the rows along its axis ``row_axis``.

    CUDA graphs are not used. A graph's next replay overwrites the memory of its outputs, but here the features between
    segments are kept for the backward pass, for slot probes, and for the suffixes that start from them.

    Args:
        compiles: compile the host's segments with ``torch.compile`` for the pass that trains all hosts, where shapes
            never change. Seed modules, whose number varies between epochs, other passes and validation run uncompiled.
            Compilation depends on the segment and on the shapes alone, never on how often they occurred: a twin and its
            environment must compute the same bits.
    """

    name: str
    row_axis = 0
    one_by_one = False

    def __init__(self, *, compiles: bool = False) -> None:
        self._compiles = compiles
        self._compiled: dict[tuple[int, ...], Program] = {}
        if compiles:
            self.name += COMPILED_SUFFIX

    def pack(self, x: Tensor) -> Tensor:
        return x

    def share(self, x: Tensor, num_rows: int) -> Tensor:
        return x.expand(num_rows, *x.shape)

    def unpack(self, features: Tensor) -> Tensor:
        return features

    def settle(self, program: Program) -> Program:
        if not self._compiles:
            return program
        # Populations of one host share its segments and their compiled forms.
        key = tuple(map(id, program.module.children())) or (id(program.module),)
        if key not in self._compiled:
            self._compiled[key] = replace(program, training_call=_compile(self.evaluate, program))
        return self._compiled[key]

    def call(
        self,
        program: Program,
        parameters: Tensor,
        features: Tensor,
        frozen: Tensor | None = None,
        parts: Sequence[int] = (),
    ) -> Tensor:
        compiled = program.training_call if parameters.requires_grad and torch.is_grad_enabled() else None
        if frozen is not None and compiled is not None:
            trained, others = self.split(features, [len(parameters), len(frozen)])
            return self.join([self.call(program, parameters, trained), self.evaluate(program, frozen, others)])
        if compiled is not None:
            # A single layout, because each new one would be compiled separately.
            return compiled(parameters, features.contiguous())
        rows = parameters if frozen is None else torch.cat([parameters, frozen])
        if len(parts) < 2 or not self.mixes_rows(features):
            return self.evaluate(program, rows, features)
        pieces = zip(torch.split(rows, list(parts)), self.split(features, parts), strict=True)
        return self.join([dense(self.evaluate(program, own, dense(x))) for own, x in pieces])

    def mixes_rows(self, features: Tensor) -> bool:
        """Return whether a row's bits may depend on the number of rows beside it, as in kernels that hold the rows in
        the axis of channels: they sum in another order.
        """
        return True

    @abstractmethod
    def evaluate(self, program: Program, parameters: Tensor, features: Tensor) -> Tensor:
        """Run :meth:`call` uncompiled."""

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


class _Dense(torch.autograd.Function):
    """The identity, with values and gradients contiguous in memory: a kernel's order of sums depends on strides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous() if not x.is_contiguous() else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def dense(x: Tensor) -> Tensor:
    """Apply :class:`_Dense`, with types."""
    result: Tensor = _Dense.apply(x)  # type: ignore[no-untyped-call]
    return result


def _compile(call: Callable[[Program, Tensor, Tensor], Tensor], program: Program) -> Callable[[Tensor, Tensor], Tensor]:
    """Compile ``call`` for one program, once per shape."""

    def run(parameters: Tensor, features: Tensor) -> Tensor:
        return call(program, parameters, features)

    # torch.compile limits recompilations per code object, so each program gets its own.
    own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(own, dynamic=False, fullgraph=True, backend=BACKEND)
    return compiled
