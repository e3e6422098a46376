"""The policy in half precision: its results are fp32, and the update recomputes those of the rollout."""

from __future__ import annotations

import pytest
import torch
from helpers import NEEDS_FP16, RATIO_TOLERANCES
from policy_cases import masks_at, opinionated_policy, random_masks, random_view, rng

from esper.growth.actions import NUM_HEADS

half = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16"), pytest.param(torch.float16, id="fp16", marks=NEEDS_FP16)]
)
NUM_ENVS, NUM_STEPS = 6, 20


def replayed_ratio(dtype: torch.dtype | None, end_share: float, device: str = "cpu") -> torch.Tensor:
    """Ratios ``[n, T]`` of an update's first pass over half of the environments, before any step."""
    policy = opinionated_policy(autocast_dtype=dtype).to(device)
    generator = rng(5)
    features, index = random_view(NUM_ENVS, NUM_STEPS, generator=generator)
    masks = random_masks(NUM_ENVS, NUM_STEPS, generator=generator).to(device)
    ends = (torch.rand(NUM_ENVS, NUM_STEPS, generator=generator) < end_share).to(device)
    features, index = features.to(device), index.to(device)
    hidden = start = policy.initial_state(NUM_ENVS)
    acts = []
    for step in range(NUM_STEPS):
        act = policy.act(features[:, step], index[:, step], masks_at(masks, step), hidden, generator)
        hidden = act.hidden[0].masked_fill(ends[:, step, None], 0), act.hidden[1].masked_fill(ends[:, step, None], 0)
        acts.append(act)
    assert {t.dtype for act in acts for t in (act.log_prob, act.value, act.q)} == {torch.float32}
    rows = torch.arange(0, NUM_ENVS, 2)
    actions, old = (torch.stack([getattr(act, name) for act in acts], 1)[rows] for name in ("actions", "log_prob"))
    evaluation = policy.evaluate(
        features[rows], index[rows], masks[rows], actions, (start[0][rows], start[1][rows]), ends[rows]
    )
    assert {t.dtype for t in (evaluation.log_prob, evaluation.entropy, evaluation.q)} == {torch.float32}
    return (evaluation.log_prob - old).sum(-1).exp().detach()


@half
@pytest.mark.parametrize("end_share", [0.0, 0.1])
def test_the_first_passes_ratio_is_one(dtype: torch.dtype, end_share: float) -> None:
    ratio = replayed_ratio(dtype, end_share)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=RATIO_TOLERANCES[dtype], rtol=0)


@half
def test_it_acts_like_fp32_but_not_to_the_bit(dtype: torch.dtype) -> None:
    generator = rng(3)
    features, index = random_view(200, generator=generator)
    masks = random_masks(200, generator=generator)
    results = []
    for autocast_dtype in (None, dtype):
        policy = opinionated_policy(autocast_dtype=autocast_dtype)
        hidden = policy.initial_state(200)
        act = policy.act(features, index, masks, hidden, deterministic=True)
        assert torch.equal(policy.value(features, index, masks, hidden), act.value)
        results.append(act)
    full, halved = results
    assert not torch.equal(halved.value, full.value)
    torch.testing.assert_close(halved.value, full.value, atol=0.02, rtol=0.02)
    agree = (halved.actions == full.actions).all(-1)
    assert agree.double().mean() > 0.9
    torch.testing.assert_close(halved.log_prob[agree], full.log_prob[agree], atol=0.05, rtol=0)


@half
def test_gradients_are_fp32_and_close_to_those_of_fp32(dtype: torch.dtype) -> None:
    generator = rng(4)
    features, index = random_view(40, 5, generator=generator)
    masks = random_masks(40, 5, generator=generator)
    gradients, ends = [], torch.zeros(40, 5, dtype=torch.bool)
    actions = torch.zeros(40, 5, NUM_HEADS, dtype=torch.int64)
    for autocast_dtype in (None, dtype):
        policy = opinionated_policy(autocast_dtype=autocast_dtype)
        evaluation = policy.evaluate(features, index, masks, actions, policy.initial_state(40), ends)
        loss = evaluation.q.square().mean() - evaluation.log_prob.mean()
        found = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        assert all(gradient is None or gradient.dtype == torch.float32 for gradient in found)
        gradients.append(torch.cat([gradient.flatten() for gradient in found if gradient is not None]))
    assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("end_share", [0.0, 0.1])
def test_on_cuda_the_first_passes_ratio_is_one_to_the_precision(dtype: torch.dtype, end_share: float) -> None:
    """Kernels for one step and for a whole rollout may round a sum differently: by an eps of the precision."""
    ratio = replayed_ratio(dtype, end_share, "cuda")
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=10 * torch.finfo(dtype).eps, rtol=0)
