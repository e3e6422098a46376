"""Slot probes measure what their definitions say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper.population import NUM_PROBES, probe_hosts, probes
from esper.population.probes import PROBE_NAMES, slot_probes
from tests.population.growing import batch, digits_host, populate


def probe(x: torch.Tensor, gradient: torch.Tensor) -> dict[str, float]:
    values = slot_probes([x], [gradient])
    assert values.shape == (len(x), 1, NUM_PROBES)
    return dict(zip(PROBE_NAMES, values[0, 0].tolist(), strict=True))


def test_dead_channels_are_those_that_are_zero_on_the_whole_batch() -> None:
    x = torch.rand(1, 5, 8, 4, 4) + 0.1
    x[:, :, 2:] = 0.0
    x[0, 3, 7, 1, 1] = 0.5  # alive on one pixel of one sample
    assert probe(x, torch.zeros_like(x))["dead_channels"] == pytest.approx(5 / 8)


@pytest.mark.parametrize("sample", [0, 39])
def test_a_channel_is_alive_whichever_sample_shows_it(sample: int) -> None:
    x = torch.rand(2, 40, 8, 4, 4) + 0.1
    x[:, :, 2:5] = 0.0
    x[:, sample, 2, 3, 3] = -0.5
    for memory in (x, x.movedim(2, -1).contiguous().movedim(-1, 2)):
        dead = slot_probes([memory], [memory], ["dead_channels"])
        assert dead.flatten().tolist() == pytest.approx([2 / 8] * 2)
    x[1, -1] = 0.1  # in the last sample of the last environment all are alive
    assert slot_probes([x], [x], ["dead_channels"]).flatten().tolist() == pytest.approx([2 / 8, 0.0])


def test_effective_rank_is_one_over_the_channels_for_copies_and_one_for_independent_channels() -> None:
    one = torch.randn(1, 500, 1, 4, 4)
    assert probe(one.expand(1, 500, 8, 4, 4), one.expand(1, 500, 8, 4, 4))["effective_rank"] == pytest.approx(1 / 8)
    independent = torch.randn(1, 2000, 8, 4, 4)
    assert probe(independent, independent)["effective_rank"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("batch_size", [3, 512])
def test_effective_rank_of_a_wide_map_is_close_to_that_of_the_whole_batch(batch_size: int) -> None:
    mix = torch.randn(8, 40)  # activations of about rank 8
    x = (torch.randn(2, batch_size, 16, 16, 8) @ mix).movedim(-1, 2)
    samples = x.transpose(1, 2).flatten(2)
    share = [float(1 / each.cov().div(each.cov().trace()).square().sum() / 40) for each in samples]
    measured = slot_probes([x], [x])[:, 0, PROBE_NAMES.index("effective_rank")]
    assert measured.tolist() == pytest.approx(share, abs=0.01)


def test_only_the_probes_asked_for_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    x, gradient = torch.randn(2, 6, 8, 4, 4), torch.randn(2, 6, 8, 4, 4)
    whole = slot_probes([x, gradient], [gradient, x])
    monkeypatch.setattr(probes, "_first_order_gain", None)  # calling it would fail
    names = ("log_gradient_norm", "dead_channels")
    values = slot_probes([x, gradient], [gradient, x], names)
    assert torch.equal(values, whole[..., [PROBE_NAMES.index(name) for name in names]])


def test_first_order_gain_is_the_gradient_norm_of_a_zero_convolution_at_the_slot() -> None:
    x, gradient = torch.randn(3, 6, 8, 4, 4), torch.randn(3, 6, 8, 4, 4)
    values = slot_probes([x], [gradient])[:, 0, PROBE_NAMES.index("log_first_order_gain")]
    for environment in range(3):
        conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        nn.init.zeros_(conv.weight)
        (conv(x[environment]) * gradient[environment]).sum().backward()
        assert conv.weight.grad is not None
        expected = (conv.weight.grad.norm().log10() + 2) / 3
        assert values[environment].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(("rank", "error"), [(1, 0.05), (40, 0.01)])
def test_first_order_gain_of_a_wide_map_is_close_to_that_of_all_channels(
    rank: int, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = []
    for mixes in torch.randn(50, 2, rank, 40) / rank**0.5:  # the weight gradient has about this rank
        x, gradient = (torch.randn(1, 16, 4, 4, rank) @ mix for mix in mixes)
        pairs.append((x.movedim(-1, 2), gradient.movedim(-1, 2) / 16))
    features, gradients = zip(*pairs, strict=True)
    estimated = slot_probes(features, gradients, ["log_first_order_gain"])
    monkeypatch.setattr(probes, "WIDE", 40)
    off = estimated - slot_probes(features, gradients, ["log_first_order_gain"])
    assert 0 < off.square().mean().sqrt() < error
    assert off.mean().abs() < error / 2


def test_first_order_gain_of_a_smooth_wide_map_is_that_of_all_taps_however_few_channels_are_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(3, 6, 40, 8, 8)
    x[:, :, [7, 30]] = torch.rand(3, 1, 2, 1, 1)
    gradient = torch.zeros(3, 6, 40, 8, 8)
    gradient[..., 1:-1, 1:-1] = torch.randn(3, 6, 40, 6, 6)  # not where the padding shows
    estimated = slot_probes([x], [gradient], ["log_first_order_gain"])
    monkeypatch.setattr(probes, "WIDE", 40)
    exact = slot_probes([x], [gradient], ["log_first_order_gain"])
    assert torch.allclose(estimated, exact, atol=1e-5)


def test_gradient_norm_of_a_wide_map_is_that_of_all_its_numbers() -> None:
    x = torch.randn(3, 6, 40, 4, 4)
    for gradient in (torch.randn(3, 6, 40, 4, 4), torch.randn(3, 6, 4, 4, 40).movedim(-1, 2)):
        expected = (torch.stack([each.norm() for each in gradient]).log10() + 2) / 3
        assert torch.allclose(slot_probes([x], [gradient])[:, 0, PROBE_NAMES.index("log_gradient_norm")], expected)


def test_a_stronger_gradient_raises_the_gradient_probe_by_a_third_per_decade() -> None:
    x, gradient = torch.randn(1, 6, 8, 4, 4), torch.randn(1, 6, 8, 4, 4)
    gradient *= 0.01 / gradient.norm()
    weak, strong = (probe(x, factor * gradient)["log_gradient_norm"] for factor in (1.0, 10.0))
    assert weak == pytest.approx(0.0, abs=1e-5)
    assert strong - weak == pytest.approx(1 / 3, abs=1e-5)


def test_probes_stay_in_range_whatever_happens() -> None:
    x = torch.full((2, 4, 8, 4, 4), torch.nan)
    x[1] = torch.inf
    assert slot_probes([x, torch.zeros_like(x)], [x, torch.zeros_like(x)]).abs().max() <= 2


@pytest.mark.parametrize("mapping", ["loop", "vmap", "grouped", "matmul"])
def test_a_starved_block_shows_at_its_slot_in_every_mapping(mapping: str) -> None:
    numbers = [0, 1]  # intact, starved in block 1
    population = populate(mapping, numbers)
    dead = probe_hosts(population, *batch(numbers))[..., PROBE_NAMES.index("dead_channels")]
    assert dead[1, 1].item() >= 6 / 8 > dead[0, 1].item()
    assert dead[1, 0].item() < 6 / 8
    assert dead.shape == (2, len(digits_host().places))
