"""The interface between ordinary modules and many copies of them.

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
        layout: layout of its parameters.
        compiled: the mapping's own form of the module.
        training_call: compiled form of ``call(parameters, features)`` for training, if the mapping has one.
        users: name of a user's own module for messages.
    """

    module: nn.Module
    layout: ParameterLayout
    compiled: Any = None
    training_call: Callable[[Tensor, Tensor], Tensor] | None = None
    users: str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """Row indices, as a tensor for gathers and as numbers for loops."""

    tensor: Tensor
    items: tuple[int, ...]

    @classmethod
    def of(cls, items: Sequence[int], device: torch.device) -> Index:
        """Make an index of the given row numbers."""
        return cls(torch.tensor(items, dtype=torch.long).to(device, non_blocking=True), tuple(items))

    @classmethod
    def join(cls, parts: Sequence[Index]) -> Index:
        """Concatenate indices."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([part.tensor for part in parts]), tuple(item for part in parts for item in part.items))

    def __len__(self) -> int:
        return len(self.items)


def is_all(index: Index, count: int) -> bool:
    """Return whether an index names rows 0 to count - 1 in order, so that selecting would only copy."""
    return index.items == tuple(range(count))


class Mapping(Protocol):
    """A way to run R copies of a module. All mappings compute the same; ``loop`` is the reference.

    Attributes:
        name: name in the registry.
        one_by_one: run each environment separately, backward included, so that its features are still in the caches
            when they are read.
    """

    name: str
    one_by_one: bool

    def prepare(self, module: nn.Module) -> Program:
        """Prepare a module for :meth:`call`; raise ``ValueError`` naming a layer that cannot be mapped."""

    def settle(self, program: Program) -> Program:
        """Optimise the program of a part that every training step runs with the same rows."""

    def pack(self, x: Tensor) -> Features:
        """Convert ``[R, B, ...]`` to features."""

    def share(self, x: Tensor, num_rows: int) -> Features:
        """Make features of ``num_rows`` rows that all see the same ``x [B, ...]``."""

    def unpack(self, features: Features) -> Tensor:
        """Convert features to ``[R, B, ...]``."""

    def call(
        self,
        program: Program,
        parameters: Tensor,
        features: Features,
        frozen: Tensor | None = None,
        parts: Sequence[int] = (),
    ) -> Features:
        """Run the module, row r with ``parameters[r]``, and the rows after these with those of ``frozen``.

        Args:
            program: prepared module.
            parameters: ``[T, P]``.
            features: features of T + F rows.
            frozen: ``[F, P]``, without a gradient.
            parts: lengths of consecutive parts of all rows; the bits of one do not depend on the presence of others.
        """

    def select(self, features: Features, rows: Index) -> Features:
        """Select the features of some rows, which may repeat."""

    def split(self, features: Features, counts: Sequence[int]) -> Sequence[Features]:
        """Divide rows into consecutive parts of the given lengths."""

    def join(self, parts: Sequence[Features]) -> Features:
        """Concatenate the rows of several features."""

    def blend(
        self,
        inputs: Features,
        outputs: Features,
        alpha: Tensor | float,
        algorithm: BlendAlgorithm,
        gate: Features | None,
    ) -> Features:
        """Blend a module's output at a slot, ``alpha [R]`` per row (:func:`esper.growth.blending.blend`).

        If all rows are at one alpha it may be a number.
        """

    def replace(self, features: Features, rows: Index, new: Features) -> Features:
        """Replace the features of some distinct rows."""

    def add(self, features: Features, rows: Index, plus: Features, minus: Features) -> Features:
        """Add ``plus - minus`` to the features of some distinct rows."""

    def straight_through(self, features: Features, rows: Index, standing: Features) -> Features:
        """Keep the values of the features, but also pass gradients of some distinct rows to ``standing``.

        Values of ``standing`` are not read, so that values which are not finite do not affect the features.
        """

    def detach(self, features: Features) -> Features:
        """Detach the features from the graph."""

    def tensors(self, features: Features) -> list[Tensor]:
        """Return the tensors that make up the features, for ``autograd.grad``."""

    def from_tensors(self, tensors: Sequence[Tensor]) -> Features:
        """Make features from tensors in the form returned by :meth:`tensors`."""
