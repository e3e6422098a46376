"""Blueprints of networks of vectors: the identity at birth, alive, and each sample for itself."""

from __future__ import annotations

import pytest
import torch

from esper.blueprints import BLUEPRINTS, blueprint_ids, build_blueprint, compatible
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.layouts import Layout
from esper.hosts import reset_parameters
from esper.runtime.rng import generator

IDS = list(BLUEPRINTS["mlp"])


def test_they_are_offered_to_vectors_alone() -> None:
    offered = compatible([("mlp", 6), ("cnn", 6), ("transformer", 6)])
    names = [{blueprint_ids()[index] for index in row.nonzero().flatten().tolist()} for row in offered]
    assert set(IDS) == names[0] == {"norm", "lora", "mlp_small", "mlp"}


@pytest.mark.parametrize("algorithm", BlendAlgorithm)
@pytest.mark.parametrize("blueprint_id", IDS)
def test_identity_at_birth_with_a_gradient_and_each_sample_for_itself(
    blueprint_id: str, algorithm: BlendAlgorithm
) -> None:
    gate = Gate(6, Layout.VECTOR) if algorithm is BlendAlgorithm.GATE else None
    module = BlendedModule(build_blueprint("mlp", blueprint_id, 6), algorithm, gate, 0.5)
    reset_parameters(module, generator("module", blueprint_id))
    x = torch.randn(5, 6, generator=generator("feature"))
    assert torch.equal(module(x), x)
    (module(x) * torch.randn(x.shape, generator=generator("upstream"))).sum().backward()
    assert sum(float(p.grad.square().sum()) for p in module.body.parameters() if p.grad is not None) > 1e-6
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator("stir")))
        torch.testing.assert_close(module(x), torch.cat([module(row) for row in x.split(1)]))
