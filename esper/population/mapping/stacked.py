"""What the stacked mappings share: features are one tensor in which the rows have an axis of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.actions import BlendAlgorithm
from esper.blending import blend
from esper.population.mapping.base import Index, is_all
from esper.population.mapping.straight import straight_through


class StackedFeatures:
    """Row operations on a tensor whose axis ``row_axis`` holds the rows."""

    row_axis: int
    one_by_one = False

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
