"""Blending and alpha curves: exact endpoints, worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.growth.actions import AlphaCurve, BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate, blend, curve

CURVES = list(AlphaCurve)
ALGORITHMS = list(BlendAlgorithm)


def gate_for(algorithm: BlendAlgorithm, x: torch.Tensor) -> torch.Tensor | None:
    return torch.rand(*x.shape[:2], 1, 1, dtype=x.dtype) if algorithm is BlendAlgorithm.GATE else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curves_start_at_exactly_zero_and_end_at_exactly_one(dtype: torch.dtype) -> None:
    ends = curve(torch.tensor([[0.0], [1.0]], dtype=dtype).expand(2, 5), torch.tensor(CURVES).expand(2, 5))
    assert ends.dtype == dtype
    assert ends.tolist() == [[0.0] * 5, [1.0] * 5]


@pytest.mark.parametrize("kind", CURVES)
def test_curves_rise_and_are_symmetric(kind: AlphaCurve) -> None:
    progress = torch.linspace(0, 1, 101, dtype=torch.float64)
    value = curve(progress, torch.full((101,), kind))
    assert (value.diff() > 0).all()
    torch.testing.assert_close(value + value.flip(0), torch.ones_like(value))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AlphaCurve.LINEAR, 0.25),
        (AlphaCurve.COSINE, 0.5 - 0.5 * math.sqrt(0.5)),
        # (σ(k(p − ½)) − σ(−k/2)) / (σ(k/2) − σ(−k/2)) at p = ¼
        (AlphaCurve.SIGMOID_GENTLE, (0.18242552 - 0.04742587) / (0.95257413 - 0.04742587)),
        (AlphaCurve.SIGMOID, (0.04742587 - 0.00247262) / (0.99752738 - 0.00247262)),
        (AlphaCurve.SIGMOID_SHARP, (0.00247262 - 0.00000614) / (0.99999386 - 0.00000614)),
    ],
)
def test_curves_at_a_quarter_equal_hand_worked_numbers(kind: AlphaCurve, expected: float) -> None:
    value = curve(torch.tensor([0.25], dtype=torch.float64), torch.tensor([kind]))
    assert value.item() == pytest.approx(expected, abs=1e-7)


def test_a_mixed_batch_of_curves_equals_one_at_a_time() -> None:
    progress, kinds = torch.rand(3, 5), torch.tensor(CURVES).expand(3, 5)
    one_by_one = [[curve(progress[i, j], kinds[i, j]).item() for j in range(5)] for i in range(3)]
    torch.testing.assert_close(curve(progress, kinds), torch.tensor(one_by_one))


@pytest.mark.parametrize(
    ("algorithm", "gate", "expected"),
    [
        (BlendAlgorithm.ADD, None, 2.0 + 0.5 * (3.0 - 2.0)),
        (BlendAlgorithm.MULTIPLY, None, 2.0 * (1.0 + 0.5 * math.tanh(1.0))),
        (BlendAlgorithm.GATE, 0.4, 2.0 + 0.5 * 0.4 * (3.0 - 2.0)),
    ],
)
def test_blend_equals_hand_worked_numbers(algorithm: BlendAlgorithm, gate: float | None, expected: float) -> None:
    x, s = torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0)
    blended = blend(x, s, 0.5, algorithm, None if gate is None else torch.full((1, 1, 1, 1), gate))
    assert blended.item() == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alpha_zero_is_exactly_the_host(algorithm: BlendAlgorithm) -> None:
    x, s = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    assert torch.equal(blend(x, s, 0.0, algorithm, gate_for(algorithm, x)), x)


@given(st.floats(0, 1))
def test_a_module_that_changes_nothing_blends_to_exactly_the_host(alpha: float) -> None:
    x = torch.randn(2, 3, 2, 2)
    for algorithm in ALGORITHMS:
        assert torch.equal(blend(x, x.clone(), alpha, algorithm, gate_for(algorithm, x)), x)


def test_full_add_is_exactly_the_module() -> None:
    x, s = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    assert torch.equal(blend(x, s, 1.0, BlendAlgorithm.ADD), s)
    assert torch.equal(blend(x, s, torch.ones(4, 1, 1, 1), BlendAlgorithm.ADD), s)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("of_module", [torch.bfloat16, torch.float16, torch.float32])
def test_types_of_host_and_module_may_differ_and_the_host_keeps_its_own(
    algorithm: BlendAlgorithm, kept: torch.dtype, of_module: torch.dtype
) -> None:
    x, s = torch.randn(4, 3, 2, 2).to(kept), torch.randn(4, 3, 2, 2).to(of_module)
    gate = gate_for(algorithm, s)
    exact = blend(x.double(), s.double(), 0.3, algorithm, None if gate is None else gate.double())
    for alpha in (0.3, torch.full((4, 1, 1, 1), 0.3)):
        blended = blend(x, s, alpha, algorithm, gate)
        assert blended.dtype == kept
        # Rounded once, at the end.
        torch.testing.assert_close(blended.double(), exact, rtol=torch.finfo(kept).eps, atol=1e-6)
    assert torch.equal(blend(x, s, torch.zeros(()), algorithm, gate), x)
    assert torch.equal(blend(x, x.float(), 0.7, algorithm, gate), x)
    if algorithm is BlendAlgorithm.ADD:
        assert torch.equal(blend(x, s, 1.0, algorithm), s.to(kept))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stack_of_alphas_blends_each_environment_by_its_own(algorithm: BlendAlgorithm) -> None:
    x, s, alpha = torch.randn(3, 2, 4, 5, 5), torch.randn(3, 2, 4, 5, 5), torch.tensor([0.0, 0.3, 1.0])
    gate = torch.rand(3, 2, 4, 1, 1) if algorithm is BlendAlgorithm.GATE else None
    together = blend(x, s, alpha.view(3, 1, 1, 1, 1), algorithm, gate)
    for i in range(3):
        alone = blend(x[i], s[i], alpha[i], algorithm, None if gate is None else gate[i])
        assert torch.equal(together[i], alone)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gate_and_algorithm_must_fit(algorithm: BlendAlgorithm) -> None:
    x = torch.ones(1, 2, 1, 1)
    wrong = None if algorithm is BlendAlgorithm.GATE else x
    with pytest.raises(ValueError, match=f"GATE.*{algorithm.name} with"):
        blend(x, x, 0.5, algorithm, wrong)
    with pytest.raises(ValueError, match=f"GATE.*{algorithm.name} with"):
        BlendedModule(nn.Identity(), algorithm, None if wrong is None else Gate(2))


def test_gate_is_open_for_every_sample_at_birth() -> None:
    opened = Gate(3)(torch.randn(5, 3, 4, 4))
    assert opened.shape == (5, 3, 1, 1)
    torch.testing.assert_close(opened, torch.full_like(opened, 1 / (1 + math.exp(-2))))


def test_gate_sees_each_sample_and_channel_by_its_mean() -> None:
    gate = Gate(2)
    with torch.no_grad():
        gate.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1))
        gate.bias.zero_()
    x = torch.tensor([[[[1.0, 3.0]], [[1.0, 3.0]]], [[[0.0, 0.0]], [[-1.0, 1.0]]]])  # [2, 2, 1, 2]
    expected = torch.tensor([[1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))], [0.5, 0.5]])
    torch.testing.assert_close(gate(x).flatten(1), expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_blended_module_is_the_blend_and_saves_its_alpha(algorithm: BlendAlgorithm) -> None:
    x = torch.randn(4, 3, 5, 5)
    gate = Gate(3) if algorithm is BlendAlgorithm.GATE else None
    module = BlendedModule(nn.Conv2d(3, 3, 1), algorithm, gate, alpha=0.7)
    expected = blend(x, module.body(x), 0.7, algorithm, None if gate is None else gate(x))
    torch.testing.assert_close(module(x), expected)

    restored = BlendedModule(nn.Conv2d(3, 3, 1), algorithm, Gate(3) if gate else None, alpha=0.0)
    restored.load_state_dict(module.state_dict())
    assert torch.equal(restored(x), module(x))


def test_alpha_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha=1\.5"):
        BlendedModule(nn.Identity(), BlendAlgorithm.ADD, alpha=1.5)
