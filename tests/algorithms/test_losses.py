"""Loss terms against numbers computed by hand, with their intended denominators."""

from __future__ import annotations

import pytest
import torch

from esper.algorithms.losses import (
    entropy_bonus,
    explained_variance,
    kl_terms,
    log_ratios,
    normalise_advantages,
    surrogate,
    value_loss,
)
from esper.runtime.options import Ratio

ALL = torch.tensor([[True], [True], [True], [True]])


def test_surrogate_is_pessimistic_about_the_clipped_ratio() -> None:
    """min(r A, clip(r) A): 1.5 with A=1 -> 1.2; 1.5 with A=-1 -> -1.5; 0.5 with A=1 -> 0.5; 0.5 with A=-1 -> -0.8."""
    log_ratio = torch.tensor([[1.5], [1.5], [0.5], [0.5]]).log().requires_grad_()
    loss, outside = surrogate(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0]), ALL, 0.2)
    assert float(loss.detach()) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8))
    assert outside == 4
    loss.backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad.flatten() != 0).tolist() == [False, True, True, False]  # clipped gains move nothing


def test_steps_without_weight_add_neither_loss_nor_clipped_share() -> None:
    weights = torch.tensor([[True], [False], [False], [False]])
    log_ratio = torch.tensor([[1.1], [9.0], [9.0], [9.0]]).log()
    loss, outside = surrogate(log_ratio, torch.ones(4), weights, 0.2)
    assert float(loss) == pytest.approx(-1.1)
    assert outside == 0
    assert surrogate(log_ratio, torch.ones(4), torch.zeros_like(weights), 0.2)[1] == 0


def test_joint_and_per_head_ratios() -> None:
    new, old = torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([[0.25, 0.5, 0.0]])
    assert log_ratios(new, old, Ratio.joint).tolist() == [[0.0]]
    assert log_ratios(new, old, Ratio.per_head).tolist() == [[0.25, -0.25, 0.0]]


def test_kl_estimate_is_unbiased_and_never_negative() -> None:
    old, new = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    terms = kl_terms(new.log() - old.log())
    assert (terms >= 0).all()
    assert float((old * terms).sum()) == pytest.approx(float((old * (old / new).log()).sum()))


def test_value_loss_plain_and_clipped() -> None:
    new, old, returns = torch.tensor([2.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 1.0])
    assert float(value_loss(new, old, returns, None)) == pytest.approx(0.5 * 0.81)
    # The first value moved 2 towards its return and counts as having moved 0.2 only.
    assert float(value_loss(new, old, returns, 0.2)) == pytest.approx(0.5 * (1.8**2 + 0.81))


def test_advantages_are_normalised_over_choice_steps_only() -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(6, 50, generator=generator) * 3 + 1000
    choice = torch.rand(6, 50, generator=generator) < 0.3
    advantages[~choice] = 1e6
    kept = normalise_advantages(advantages, choice)[choice].double()
    assert float(kept.mean()) == pytest.approx(0, abs=1e-5)
    assert float(kept.std()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("num_choices", [0, 1])
def test_fewer_than_two_choice_steps_leave_advantages_alone(num_choices: int) -> None:
    advantages = torch.tensor([[3.0, 4.0, 5.0]])
    choice = torch.arange(3).unsqueeze(0) < num_choices
    assert torch.equal(normalise_advantages(advantages, choice), advantages)


def test_equal_advantages_become_zero_not_nan() -> None:
    choice = torch.ones(1, 3, dtype=torch.bool)
    assert normalise_advantages(torch.full((1, 3), 2.0), choice).tolist() == [[0, 0, 0]]


def test_a_rare_heads_entropy_weighs_by_how_often_the_head_matters() -> None:
    """One step in ten uses head 1: its pull per choice step is a tenth of a head used always, at equal entropy."""
    entropy = torch.zeros(10, 8)
    entropy[:, 0] = 0.5
    entropy[0, 1] = 0.5
    entropy.requires_grad_()
    choice = torch.ones(10, dtype=torch.bool)
    multipliers = torch.tensor([1.0, 3.0, 1, 1, 1, 1, 1, 1])
    bonus = entropy_bonus(entropy, choice, multipliers) / choice.sum()
    assert float(bonus.detach()) == pytest.approx(0.5 + 3 * 0.5 / 10)
    bonus.backward()
    assert entropy.grad is not None
    assert float(entropy.grad[:, 0].sum()) == pytest.approx(1.0)
    assert float(entropy.grad[0, 1]) == pytest.approx(3 / 10)


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(returns + 7, returns) == 1  # a constant offset varies nothing
    assert explained_variance(torch.zeros(4), returns) == 0
    assert explained_variance(-returns, returns) == pytest.approx(-3)
    assert explained_variance(returns, torch.full((4,), 0.1)) is None
    assert explained_variance(torch.empty(0), torch.empty(0)) is None
