"""The normaliser's statistics are those of all the data it was given, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.policy import Normaliser, merge_moments, moments

CONTINUOUS = torch.tensor([True, True, False])


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, n, 3, generator=generator) * 3 + 100 for n in (1, 5, 2)]


def test_statistics_equal_numpys_over_all_batches() -> None:
    normaliser = Normaliser(CONTINUOUS)
    for batch in batches():
        normaliser.merge(moments(batch))
    everything = np.concatenate([batch.reshape(-1, 3).numpy().astype(np.float64) for batch in batches()])
    np.testing.assert_allclose(normaliser.mean.numpy(), everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose((normaliser.m2 / normaliser.count).numpy(), everything.var(0), rtol=1e-9)
    assert normaliser.count == len(everything)
    raw = torch.tensor([[101.0, 97.0, 42.0]])
    expected = (raw.numpy() - everything.mean(0)) / everything.std(0)
    np.testing.assert_allclose(normaliser(raw)[0, :2].numpy(), expected[0, :2], rtol=1e-5)
    assert normaliser(raw)[0, 2] == 42


def test_merging_is_like_having_seen_both_and_empty_batches_change_nothing() -> None:
    a, b, c = (moments(batch) for batch in batches())
    together = moments(torch.cat([batch.reshape(-1, 3) for batch in batches()]))
    merged = merge_moments(merge_moments(a, b), merge_moments(c, moments(torch.empty(0, 3))))
    for name in ("count", "mean", "m2"):
        torch.testing.assert_close(getattr(merged, name), getattr(together, name), rtol=1e-9, atol=1e-9)


def test_identity_before_the_first_update() -> None:
    raw = torch.tensor([[-2.0, 0.1, 2.0], [30.0, -30.0, 9.0]])
    assert torch.equal(Normaliser(CONTINUOUS)(raw), raw)


def test_continuous_features_are_clipped_and_others_are_not() -> None:
    normaliser = Normaliser(CONTINUOUS)
    normaliser.merge(moments(torch.tensor([[-1.0, 7.0, 0.0], [1.0, 7.0, 0.0]])))
    result = normaliser(torch.tensor([[1e6, 6.0, 1e6], [0.5, 7.0, -1e6]]))
    assert result.tolist() == [[5.0, -5.0, 1e6], [pytest.approx(0.5), 0.0, -1e6]]


def test_applying_never_changes_the_statistics() -> None:
    normaliser = Normaliser(CONTINUOUS)
    normaliser.merge(moments(batches()[0]))
    before = {name: value.clone() for name, value in normaliser.state_dict().items()}
    normaliser(batches()[1])
    after = normaliser.state_dict()
    assert sorted(after) == ["count", "m2", "mean"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_state_dict_restores_the_same_function() -> None:
    normaliser, other = Normaliser(CONTINUOUS), Normaliser(CONTINUOUS)
    normaliser.merge(moments(batches()[1]))
    other.load_state_dict(normaliser.state_dict())
    assert torch.equal(normaliser(batches()[0]), other(batches()[0]))
