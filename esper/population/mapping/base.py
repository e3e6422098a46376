"""The seam between ordinary modules and many copies of them.

Hosts and blueprints are plain ``nn.Module``s for one network. A *mapping* runs such a module for R rows at once, each
with its own parameters. It owns the layout of features: outside, a feature is opaque and only handed back.

Axis legend: R = rows (one row is one copy of the host on one batch), B = batch, P = parameters of one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from esper.growth.actions import BlendAlgorithm
from esper.population.layout import ParameterLayout

Features = Any
"""Features of R rows in a layout that only their mapping knows."""


@dataclass(frozen=True, slots=True)
class Program:
    """A module prepared for mapping.

    Attributes:
        module: the prototype.
        layout: of its parameters.
        compiled: what the mapping made of it.
        training_call: machine code for ``call(parameters, features)`` in training, if the mapping makes some.
        users: how a user knows the module, if it is the user's own; what goes wrong in it is said with that.
    """

    module: nn.Module
    layout: ParameterLayout
    compiled: Any = None
    training_call: Callable[[Tensor, Tensor], Tensor] | None = None
    users: str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """Some rows, as a tensor for gathers and as numbers for loops."""

    tensor: Tensor
    items: tuple[int, ...]

    @classmethod
    def of(cls, items: Sequence[int], device: torch.device) -> Index:
        """Index of the given row numbers."""
        return cls(torch.tensor(items, dtype=torch.long).to(device, non_blocking=True), tuple(items))

    @classmethod
    def join(cls, parts: Sequence[Index]) -> Index:
        """One index after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([part.tensor for part in parts]), tuple(item for part in parts for item in part.items))

    def __len__(self) -> int:
        return len(self.items)


def is_all(index: Index, count: int) -> bool:
    """Whether an index names rows 0 to count - 1 in order, so that selecting would only copy."""
    return index.items == tuple(range(count))


class Mapping(Protocol):
    """How R copies of a module are run. All mappings compute the same thing; ``loop`` is the reference.

    Attributes:
        name: in the registry.
        one_by_one: whether environments are run each by itself, backward included, so that what one of them leaves in
            the caches is read before the next one needs them.
    """

    name: str
    one_by_one: bool

    def prepare(self, module: nn.Module) -> Program:
        """Compile a module for :meth:`call`; raises ``ValueError`` naming a layer that can't be mapped."""

    def settle(self, program: Program) -> Program:
        """The program of a part that every training step runs with the same rows: worth more preparation."""

    def pack(self, x: Tensor) -> Features:
        """Features from ``[R, B, ...]``."""

    def share(self, x: Tensor, num_rows: int) -> Features:
        """Features of ``num_rows`` rows that all see the same ``x [B, ...]``."""

    def unpack(self, features: Features) -> Tensor:
        """``[R, B, ...]`` from features."""

    def call(self, program: Program, parameters: Tensor, features: Features) -> Features:
        """Run the module, row r with ``parameters[r]`` of ``[R, P]``."""

    def select(self, features: Features, rows: Index) -> Features:
        """The features of some rows, which may repeat."""

    def split(self, features: Features, counts: Sequence[int]) -> Sequence[Features]:
        """Cut rows into consecutive parts of the given lengths."""

    def join(self, parts: Sequence[Features]) -> Features:
        """Rows of several features one after the other."""

    def blend(
        self,
        inputs: Features,
        outputs: Features,
        alpha: Tensor | float,
        algorithm: BlendAlgorithm,
        gate: Features | None,
    ) -> Features:
        """Feature at a slot once a module is blended in, ``alpha [R]`` per row (:func:`esper.growth.blending.blend`).

        Where all rows are at one alpha it may be a number.
        """

    def replace(self, features: Features, rows: Index, new: Features) -> Features:
        """Features with some distinct rows replaced."""

    def add(self, features: Features, rows: Index, plus: Features, minus: Features) -> Features:
        """Features with ``plus - minus`` added at some distinct rows."""

    def straight_through(self, features: Features, rows: Index, standing: Features) -> Features:
        """Features whose values are unchanged, while gradients at some distinct rows also reach ``standing``.

        Values of ``standing`` are not read: those that are not finite do the features no harm.
        """

    def detach(self, features: Features) -> Features:
        """The same features without history."""

    def tensors(self, features: Features) -> list[Tensor]:
        """The tensors that make up the features, for ``autograd.grad``."""

    def from_tensors(self, tensors: Sequence[Tensor]) -> Features:
        """Features from tensors laid out as :meth:`tensors` gave them."""
