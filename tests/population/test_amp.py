"""Hosts in half precision: close to fp32, and isolated to the bit."""

from __future__ import annotations

import pytest
import torch

from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, PROBE_NAMES, Samples, evaluate, probe_hosts, train_epoch
from esper.population.losses import row_losses, weighted_sums
from esper.tasks.batches import TrainingSamples
from tests.population.growing import CNN_BLUEPRINTS, batch, nothing, orders, pool, populate, random_growth, stir
from tests.population.halves import FP16, HOST, half, one_step, provoke, same, state, train
from tests.tiers import few

NUM_ENVS = 6


# ----------------------------------------------------------------------------------------------------- what is computed


@half
@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(2)
def test_losses_and_gradients_of_a_step_are_close_to_fp32_and_in_fp32(
    mapping: str, incubation: str, dtype: torch.dtype
) -> None:
    """All blueprints and blends occur. A gradient jumps where rounding moves a value over the kink of a ReLU or a pool,
    so single owners may differ by more than rounding, and the mean owner may not.
    """
    errors = []
    for seed in range(4):
        sites, growth = random_growth(seed, NUM_ENVS)
        x, y = batch(range(NUM_ENVS))
        results = []
        for autocast_dtype in (None, dtype):
            population = populate(mapping, range(NUM_ENVS), sites, autocast_dtype=autocast_dtype)
            stir(population)
            results.append(one_step(population, growth, x, y, incubation)[0])
        full, halved = results
        assert halved.loss.dtype == halved.incubation_loss.dtype == torch.float32
        assert not torch.equal(halved.loss, full.loss), "the precision makes no difference"
        assert (halved.loss - full.loss).abs().max() < 2e-3
        for ours, theirs in zip(halved.gradients, full.gradients, strict=True):
            assert ours.dtype == torch.float32
            errors.append((ours - theirs).norm(dim=1) / theirs.norm(dim=1).clamp(min=1e-3))
    assert torch.cat(errors).max() < 0.3
    assert torch.cat(errors).mean() < (0.08 if dtype is torch.bfloat16 else 0.03)


@half
def test_parameters_optimizer_scores_statistics_and_probes_stay_in_fp32(dtype: torch.dtype) -> None:
    sites, growth = random_growth(0, NUM_ENVS)
    population = populate("grouped", range(NUM_ENVS), sites, autocast_dtype=dtype)
    images, labels = pool()
    order = orders(range(NUM_ENVS), 32)
    stats = train_epoch(
        population,
        TrainingSamples(images, labels),
        order,
        growth,
        incubation="auxiliary",
        num_steps=2,
        lr=0.01,
        probes=PROBE_NAMES,
    )
    tensors = [tensor for stack in population.stacks() for tensor in state(stack)]
    assert stats.probes is not None
    assert {t.dtype for t in [*tensors, stats.loss, stats.host_norm, stats.module_norm, stats.probes]} == {
        torch.float32
    }
    assert stats.probes.isfinite().all()
    scores, _ = evaluate(population, Samples(inputs=images, targets=labels, weights=torch.ones(6, 120)), growth.alpha)
    assert scores.points.dtype == torch.float64


@half
def test_softmax_is_taken_in_fp32_of_half_logits(dtype: torch.dtype) -> None:
    logits, labels = torch.randn(2, 40, 10).mul(3).to(dtype), torch.randint(10, (40,))
    assert torch.equal(row_losses(logits, labels.expand(2, -1)), row_losses(logits.float(), labels.expand(2, -1)))
    weights = torch.ones(2, 40)
    assert torch.equal(weighted_sums(logits, labels, weights), weighted_sums(logits.float(), labels, weights))


@half
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_probes_are_close_to_those_of_fp32(mapping: str, dtype: torch.dtype) -> None:
    x, y = batch(range(3))
    full = probe_hosts(populate(mapping, range(3)), x, y)
    halved = probe_hosts(populate(mapping, range(3), autocast_dtype=dtype), x, y)
    torch.testing.assert_close(halved, full, atol=0.05, rtol=0)


@half
def test_probes_of_bare_hosts_do_not_see_the_modules_that_others_have(dtype: torch.dtype) -> None:
    """Some environments restart while others are in mid-episode."""
    x, y = batch(range(3))
    sites, _ = random_growth(0, 3)
    bare, grown = (populate("loop", range(3), modules, autocast_dtype=dtype) for modules in ([], sites))
    assert torch.equal(probe_hosts(grown, x, y), probe_hosts(bare, x, y))


@half
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_new_module_is_the_identity_to_the_bit(mapping: str, dtype: torch.dtype) -> None:
    """Blending at its endpoints is exact, whatever types a module's layers come out in."""
    number = len(CNN_BLUEPRINTS)
    for algorithm in BlendAlgorithm:
        sites = [(row, 1, blueprint, algorithm) for row, blueprint in enumerate(CNN_BLUEPRINTS)]
        population = populate(mapping, range(number), sites, autocast_dtype=dtype)
        images, labels = pool(60)
        samples = Samples(inputs=images, targets=labels, weights=torch.ones(number, 60))
        off = torch.zeros(number, 3)
        for alpha in (0.5, 1.0):
            on = off.clone()
            on[:, 1] = alpha
            assert torch.equal(
                evaluate(population, samples, on)[0].points, evaluate(population, samples, off)[0].points
            )


# ------------------------------------------------------------------------------------------------------------ isolation


@half
@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(2)
def test_an_isolated_module_leaves_every_host_bit_equal_even_if_the_module_overflows(
    mapping: str, incubation: str, dtype: torch.dtype
) -> None:
    bare = populate(mapping, range(4), autocast_dtype=dtype)
    sites = [
        (environment, slot, CNN_BLUEPRINTS[(3 * environment + slot) % len(CNN_BLUEPRINTS)], BlendAlgorithm(slot))
        for environment in range(3)
        for slot in range(3)
    ]
    grown = populate(mapping, range(4), sites, autocast_dtype=dtype)
    if dtype is FP16:
        provoke(grown, 0, 1 + 1)
    before = {key: stack.values.detach().clone() for key, stack in grown.modules.items()}
    stage = nothing(4)
    stage.developing[:3] = True
    for epoch in range(3):
        train(bare, nothing(4), epoch=epoch)
        train(grown, stage, incubation=incubation, epoch=epoch)
    assert same(state(grown.hosts), state(bare.hosts), range(4))
    assert all(not torch.equal(stack.values, before[key]) for key, stack in grown.modules.items())
    if dtype is FP16:
        assert grown.scales is not None
        assert bare.scales is not None
        assert torch.equal(grown.scales.scale[:, HOST], bare.scales.scale[:, HOST])


@half
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_blended_module_leaves_its_neighbours_bit_equal(mapping: str, dtype: torch.dtype) -> None:
    bare, grown = (populate(mapping, range(4), autocast_dtype=dtype) for _ in range(2))
    stage = nothing(4)
    grown.germinate(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.GATE, torch.Generator().manual_seed(0))
    stage.alpha[1, 1] = 0.7
    train(bare, nothing(4))
    train(grown, stage)
    assert same(state(grown.hosts), state(bare.hosts), [0, 2, 3])
    assert not same(state(grown.hosts), state(bare.hosts), [1])


@half
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_hosts_numbers_do_not_depend_on_its_place_in_the_stack(mapping: str, dtype: torch.dtype) -> None:
    values = []
    images, labels = pool()
    for numbers in (list(range(8)), list(reversed(range(8)))):
        population = populate(mapping, numbers, autocast_dtype=dtype)
        order = orders(numbers, 64)
        train_epoch(
            population, TrainingSamples(images, labels), order, nothing(8), incubation="auxiliary", num_steps=2, lr=0.01
        )
        values.append(population.hosts.values.detach())
    assert torch.equal(values[0], values[1].flip(0))


# ----------------------------------------------------------------------------------------------------------------- CUDA


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_on_cuda_a_step_is_close_to_fp32_and_an_overflow_is_its_hosts_alone(mapping: str, dtype: torch.dtype) -> None:
    sites, growth = random_growth(0, NUM_ENVS)
    x, y = (tensor.to("cuda") for tensor in batch(range(NUM_ENVS)))
    results = []
    for autocast_dtype in (None, dtype):
        population = populate(mapping, range(NUM_ENVS), sites, autocast_dtype=autocast_dtype, device="cuda")
        stir(population)
        results.append(one_step(population, growth, x, y)[0])
    assert (results[0].loss - results[1].loss).abs().max() < 2e-3
    for ours, theirs in zip(results[1].gradients, results[0].gradients, strict=True):
        assert ((ours - theirs).norm(dim=1) / theirs.norm(dim=1).clamp(min=1e-3)).max() < 0.3
    if dtype is FP16:
        struck = populate(mapping, range(4), autocast_dtype=FP16, device="cuda")
        provoke(struck, 1)
        born = state(struck.hosts)
        images, labels = (tensor.to("cuda") for tensor in pool())
        order = orders(range(4), 16)
        train_epoch(
            struck, TrainingSamples(images, labels), order, nothing(4), incubation="auxiliary", num_steps=1, lr=0.01
        )
        assert same(state(struck.hosts), born, [1])
        assert all(not same(state(struck.hosts), born, [row]) for row in (0, 2, 3))
