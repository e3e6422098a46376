"""Gradient norms at the optimizer's steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper.grower.norms import GradientNorms


def test_sparse_gradients_count_as_dense_ones() -> None:
    norms = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        measured = GradientNorms(optimizer, list(model.parameters()), lambda: [])
        model(torch.tensor([1, 3, 3])).square().sum().backward()
        optimizer.step()
        norms.append(float(measured.read(0)[0]))
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)
