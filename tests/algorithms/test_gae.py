"""Advantages follow their definition for every mixture of terminations, truncations and rollout edges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.algorithms import gae, monte_carlo_returns


def slow_advantage(
    t: int,
    r: list[float],
    v: list[float],
    b: list[float],
    term: list[bool],
    trunc: list[bool],
    gamma: float,
    lam: float,
) -> float:
    """A_t as the weighted mean of n-step advantages, (1 - lambda) sum lambda^(n-1) A^(n), from their definition."""
    end = next((k for k in range(t, len(r)) if term[k] or trunc[k]), len(r) - 1)
    last = 0.0 if term[end] else b[end]
    n_step = []
    for stop in range(t, end + 1):
        rewards = sum(gamma ** (k - t) * r[k] for k in range(t, stop + 1))
        after = last if stop == end else v[stop + 1]
        n_step.append(rewards + gamma ** (stop + 1 - t) * after - v[t])
    weights = [(1 - lam) * lam**n for n in range(len(n_step) - 1)]
    weights.append(1 - sum(weights))  # all longer estimates equal the longest
    return sum(w * a for w, a in zip(weights, n_step, strict=True))


@given(st.integers(0, 2**31), st.sampled_from(["terminated", "truncated", "mixed", "none"]), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_equals_the_weighted_mean_of_n_step_advantages(seed: int, kind: str, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    r, v, b = (torch.randn(4, num_steps, generator=generator, dtype=torch.float64) for _ in range(3))
    term, trunc = (torch.rand(4, num_steps, generator=generator) < 0.25 for _ in range(2))
    term &= kind in ("terminated", "mixed")
    trunc &= kind in ("truncated", "mixed")
    gamma, lam = 0.9, 0.7
    advantages, returns = gae(r, v, b, term, trunc, gamma, lam)
    for env in range(4):
        rows = [x[env].tolist() for x in (r, v, b, term, trunc)]
        expected = [slow_advantage(t, *rows, gamma, lam) for t in range(num_steps)]
        torch.testing.assert_close(advantages[env], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(returns, advantages + v)


def test_worked_example() -> None:
    """gamma = lambda = 1/2. Row 0 terminates at step 1, row 1 is truncated there with bootstrap 8; both go on.

    Step 2 (edge): delta = 4 + 8/2 - 2 = 6. Step 1: row 0 delta = 2 + 0 - 1 = 1, row 1 delta = 2 + 8/2 - 1 = 5.
    Step 0: delta = 1 + 1/2 - 3 = -1.5, plus A_1/4: row 0 -1.25, row 1 -0.25.
    """
    no, yes = False, True
    advantages, returns = gae(
        rewards=torch.tensor([[1.0, 2, 4], [1, 2, 4]]),
        values=torch.tensor([[3.0, 1, 2], [3, 1, 2]]),
        bootstrap_values=torch.tensor([[99.0, 99, 8], [99, 8, 8]]),
        terminated=torch.tensor([[no, yes, no], [no, no, no]]),
        truncated=torch.tensor([[no, no, no], [no, yes, no]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantages.tolist() == [[-1.25, 1, 6], [-0.25, 5, 6]]
    assert returns.tolist() == [[1.75, 2, 8], [2.75, 6, 8]]


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf")])
def test_bootstrap_values_are_read_only_where_needed(nonsense: float) -> None:
    rewards, values = torch.ones(1, 4), torch.zeros(1, 4)
    terminated = torch.tensor([[False, True, False, True]])
    bootstrap = torch.full((1, 4), nonsense)
    advantages, _ = gae(rewards, values, bootstrap, terminated, torch.zeros_like(terminated), 1.0, 1.0)
    assert advantages.tolist() == [[2, 1, 2, 1]]


def test_monte_carlo_returns_sum_to_the_termination_and_are_known_only_then() -> None:
    no, yes = False, True
    returns, complete = monte_carlo_returns(
        rewards=torch.tensor([[1.0, 2, 4, 8, 16]] * 2),
        terminated=torch.tensor([[no, yes, no, yes, no], [no, no, no, no, yes]]),
        truncated=torch.tensor([[no, no, no, no, no], [no, yes, no, no, no]]),
        gamma=0.5,
    )
    assert complete.tolist() == [[yes, yes, yes, yes, no], [no, no, yes, yes, yes]]
    assert returns[0, :4].tolist() == [2, 2, 8, 8]
    assert returns[1, 2:].tolist() == [12, 16, 16]
