"""Data order: reproducible, different per host and epoch, fair to every sample."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.tasks import epoch_indices


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 5))
def test_samples_recur_evenly_and_come_from_the_pool(size: int, count: int, epoch: int) -> None:
    pool = torch.arange(size) * 3 + 7
    picks = epoch_indices(pool, count, 1, epoch)
    assert picks.dtype == torch.int64
    assert len(picks) == count
    times = [picks.tolist().count(sample) for sample in pool.tolist()]
    assert sum(times) == count
    assert max(times) - min(times) <= 1


def test_order_is_reproducible_and_differs_between_hosts_and_epochs() -> None:
    pool = torch.arange(50)
    first = epoch_indices(pool, 50, 11, 0)
    torch.manual_seed(0)
    assert torch.equal(first, epoch_indices(pool, 50, 11, 0))
    assert not torch.equal(first, epoch_indices(pool, 50, 11, 1))
    assert not torch.equal(first, epoch_indices(pool, 50, 12, 0))


def test_a_longer_epoch_starts_with_the_shorter_one() -> None:
    pool = torch.arange(20)
    assert torch.equal(epoch_indices(pool, 45, 5, 2)[:12], epoch_indices(pool, 12, 5, 2))


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="4 samples from a pool of 0"):
        epoch_indices(torch.empty(0, dtype=torch.int64), 4, 0)
