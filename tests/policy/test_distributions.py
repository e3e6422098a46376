"""A masked categorical is a distribution over the legal choices and nothing else."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.policy import MaskedCategorical
from esper.policy.distributions import SingleChoice, require_choices

LOGIT = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-1e6, -1e4, 1e4, 1e6]))


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[float], list[bool]]:
    logits = draw(st.lists(LOGIT, min_size=1, max_size=8))
    mask = draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    mask[draw(st.integers(0, len(logits) - 1))] = True
    return logits, mask


@given(rows())
@settings(deadline=None, max_examples=200)
def test_probabilities_entropy_and_mode_are_of_the_legal_choices_alone(
    row: tuple[list[float], list[bool]],
) -> None:
    logits, mask = row
    distribution = MaskedCategorical(torch.tensor([logits]), torch.tensor([mask]))
    legal = np.array(mask)
    kept = np.array(logits, dtype=np.float64)[legal]
    expected = np.exp(kept - kept.max()) / np.exp(kept - kept.max()).sum()
    probabilities = distribution.log_probs.exp()[0].numpy()
    np.testing.assert_allclose(probabilities[legal], expected, atol=1e-5)
    assert (probabilities[~legal] == 0).all()
    assert distribution.log_probs.isfinite().all()
    assert mask[int(distribution.mode())]
    assert mask[int(distribution.sample(torch.Generator().manual_seed(0)))]
    surprise = np.where(expected > 0, -expected * np.log(np.maximum(expected, 1e-300)), 0).sum()
    entropy = float(distribution.entropy())
    if legal.sum() == 1:
        assert entropy == 0
    else:
        assert entropy == pytest.approx(surprise / math.log(legal.sum()), abs=1e-4)
        assert 0 <= entropy <= 1 + 1e-5


def test_uniform_over_the_legal_has_entropy_one_whatever_their_number() -> None:
    mask = torch.tensor([[True, True, False, False], [True, True, True, False], [True, True, True, True]])
    entropy = MaskedCategorical(torch.full((3, 4), -7.0), mask).entropy()
    torch.testing.assert_close(entropy, torch.ones(3))


def test_a_row_without_a_legal_choice_raises_naming_environment_head_and_stages() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    legal = MaskedCategorical(torch.zeros(2, 2), torch.ones_like(mask), head="op")
    illegal = MaskedCategorical(torch.zeros(2, 2), mask, head="slot", describe_row=lambda row: f"r0c{row - 1} HOLDING")
    require_choices([legal])
    with pytest.raises(ValueError, match=r"head 'slot' has no legal choice in environment 1 \(r0c0 HOLDING\)"):
        require_choices([legal, illegal])
    with pytest.raises(ValueError, match="environment 0, step 1"):
        require_choices([MaskedCategorical(torch.zeros(1, 2, 2), mask.unsqueeze(0))])


def test_a_row_where_the_head_does_not_matter_needs_no_legal_choice_and_contributes_exactly_nothing() -> None:
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, True, False]])
    distribution = MaskedCategorical(logits, mask, torch.tensor([False, True]))
    index = distribution.sample(torch.Generator().manual_seed(0))
    (distribution.log_prob(index) + distribution.entropy()).sum().backward()
    assert index[0] == 0
    assert distribution.mode()[0] == 0
    assert distribution.log_prob(index)[0] == 0
    assert distribution.entropy()[0] == 0
    assert distribution.num_legal.tolist() == [0, 2]
    assert logits.grad is not None
    assert (logits.grad[0] == 0).all()
    assert (logits.grad[1, :2] != 0).all()


def test_illegal_choices_receive_no_gradient_and_unlikely_legal_ones_keep_theirs() -> None:
    logits = torch.tensor([[12.0, -12.0, 5.0]], requires_grad=True)
    distribution = MaskedCategorical(logits, torch.tensor([[True, True, False]]))
    distribution.log_prob(torch.tensor([1])).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_fp32(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=dtype)
    distribution = MaskedCategorical(logits, torch.tensor([[True, True, False]]))
    assert distribution.log_probs.dtype == torch.float32
    expected = torch.log_softmax(torch.tensor([1.0, 2.0]), -1)
    torch.testing.assert_close(distribution.log_probs[0, :2], expected)


def test_it_is_immutable_and_keeps_its_answer_when_the_mask_it_was_made_from_changes() -> None:
    mask = torch.tensor([[True, True, False]])
    distribution = MaskedCategorical(torch.zeros(1, 3), mask)
    mask[:] = torch.tensor([[False, False, True]])
    assert float(distribution.entropy()) == pytest.approx(1)
    assert distribution.num_legal.item() == 2
    with pytest.raises(FrozenInstanceError):
        distribution.log_probs = torch.zeros(1, 3)


def test_sampling_frequencies_equal_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    count = 20_000
    logits = torch.cat([probabilities.log(), torch.tensor([3.0])]).expand(count, 5)
    mask = torch.tensor([True, True, True, True, False]).expand(count, 5)
    samples = MaskedCategorical(logits, mask).sample(torch.Generator().manual_seed(0))
    observed = torch.bincount(samples, minlength=5)
    expected = count * probabilities
    assert observed[4] == 0
    chi_squared = float(((observed[:4] - expected).square() / expected).sum())
    assert chi_squared < 16.3  # 0.1 % point of chi-squared with 3 degrees of freedom


def test_all_randomness_comes_from_the_given_generator() -> None:
    distribution = MaskedCategorical(torch.zeros(50, 4))
    before = torch.get_rng_state()
    first = distribution.sample(torch.Generator().manual_seed(3))
    assert torch.equal(first, distribution.sample(torch.Generator().manual_seed(3)))
    assert not torch.equal(first, distribution.sample(torch.Generator().manual_seed(4)))
    distribution.mode()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("index", range(3))
def test_a_single_choice_is_a_distribution_in_which_nothing_else_is_legal(index: int) -> None:
    draws = torch.Generator().manual_seed(index)
    relevant = torch.rand(6, 5, generator=draws) < 0.5
    logits, noise = torch.randn(6, 5, 3, generator=draws), torch.randn(6, 5, 3, generator=draws)
    whole = MaskedCategorical(logits, torch.arange(3) == index, relevant)
    single = SingleChoice(index, relevant)
    assert torch.equal(single.num_legal, whole.num_legal)
    assert torch.equal(single.mode(), whole.mode())
    assert torch.equal(single.perturbed_mode(noise), whole.perturbed_mode(noise))
    assert torch.equal(single.entropy(), whole.entropy())
    assert torch.equal(single.log_prob(single.mode()), whole.log_prob(whole.mode()))
    other = torch.full_like(whole.mode(), (index + 1) % 3)
    assert (single.log_prob(other)[relevant] < -1e3).all()
    assert (whole.log_prob(other)[relevant] < -1e3).all()
