"""Hosts in half precision: close to fp32, isolated to the bit, and an overflow is its owner's business alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from helpers import NEEDS_FP16
from torch import Tensor

from esper.actions import BlendAlgorithm
from esper.population import INCUBATIONS, MAPPINGS, GrowthStage, Population, Samples, evaluate, probe_hosts, train_epoch
from esper.population.losses import row_losses, weighted_sums
from esper.population.scaling import GROWTH_INTERVAL, INITIAL_SCALE, MAX_SCALE, MIN_SCALE, GradientNorms, next_scales
from esper.population.stack import Stack
from esper.population.training import EpochStats, plan_training, step_gradients
from tests.population.growing import CNN_BLUEPRINTS, batch, nothing, orders, pool, populate, random_growth, stir

FP16 = torch.float16
NUM_ENVS = 6
HOST = 0
"""Column of the hosts' loss scales; a slot's is one more than its number."""

half = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16"), pytest.param(FP16, id="fp16", marks=NEEDS_FP16)]
)


def train(
    population: Population, growth: GrowthStage, *, num_steps: int = 3, incubation: str = "auxiliary", epoch: int = 0
) -> EpochStats:
    images, labels = pool()
    order = orders(range(population.num_envs), 16 * num_steps, epoch)
    return train_epoch(population, images, labels, order, growth, incubation=incubation, num_steps=num_steps, lr=0.01)


def state(stack: Stack) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor], rows: Sequence[int]) -> bool:
    return all(torch.equal(a[list(rows)], b[list(rows)]) for a, b in zip(ours, theirs, strict=True))


def scale_of(population: Population, environment: int, column: int = HOST) -> float:
    assert population.scales is not None
    return float(population.scales.scale[environment, column])


def provoke(population: Population, environment: int, column: int = HOST) -> None:
    """Set a loss scale so high that gradients overflow."""
    assert population.scales is not None
    population.scales.scale[environment, column] = MAX_SCALE


# ----------------------------------------------------------------------------------------------------- what is computed


@half
@pytest.mark.parametrize("incubation", INCUBATIONS)
@pytest.mark.parametrize("mapping", MAPPINGS)
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
            plan = plan_training(population, growth, incubation)
            results.append(step_gradients(population, plan, x, y, stacks=population.stacks()))
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
        population, images, labels, order, growth, incubation="auxiliary", num_steps=2, lr=0.01, probe=True
    )
    tensors = [tensor for stack in population.stacks() for tensor in state(stack)]
    assert stats.probes is not None
    assert {t.dtype for t in [*tensors, stats.loss, stats.host_norm, stats.module_norm, stats.probes]} == {
        torch.float32
    }
    assert stats.probes.isfinite().all()
    scores, _ = evaluate(population, Samples(images=images, labels=labels, weights=torch.ones(6, 120)), growth.alpha)
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
    """Some environments start anew while others are in mid-episode."""
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
        samples = Samples(images=images, labels=labels, weights=torch.ones(number, 60))
        off = torch.zeros(number, 3)
        for alpha in (0.5, 1.0):
            on = off.clone()
            on[:, 1] = alpha
            assert torch.equal(
                evaluate(population, samples, on)[0].points, evaluate(population, samples, off)[0].points
            )


# ------------------------------------------------------------------------------------------------------------ isolation


@half
@pytest.mark.parametrize("incubation", INCUBATIONS)
@pytest.mark.parametrize("mapping", MAPPINGS)
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
        train_epoch(population, images, labels, order, nothing(8), incubation="auxiliary", num_steps=2, lr=0.01)
        values.append(population.hosts.values.detach())
    assert torch.equal(values[0], values[1].flip(0))


# ------------------------------------------------------------------------------------------------------------ overflows


@NEEDS_FP16
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_hosts_overflow_skips_that_hosts_step_only_and_halves_only_its_scale(mapping: str) -> None:
    calm, struck = (populate(mapping, range(4), autocast_dtype=FP16) for _ in range(2))
    provoke(struck, 1)
    born = state(struck.hosts)
    train(calm, nothing(4), num_steps=1)
    stats = train(struck, nothing(4), num_steps=1)
    others = [0, 2, 3]
    assert same(state(struck.hosts), state(calm.hosts), others)
    assert same(state(struck.hosts), born, [1])
    assert stats.skipped_steps == 1
    assert scale_of(struck, 1) == MAX_SCALE / 2
    assert [scale_of(struck, environment) for environment in others] == [INITIAL_SCALE] * 3


@NEEDS_FP16
def test_a_host_whose_own_numbers_overflow_recovers_by_itself() -> None:
    """Large weights, not an artificial scale: its gradients are too large for fp16 at the scale of a new host."""
    population = populate("loop", [0, 1], autocast_dtype=FP16)
    x, y = batch([0, 1])
    head = population.hosts.program.layout.unflatten(population.hosts.values.detach())
    head["3.head.weight"][0].mul_(2000.0)
    growth = nothing(2)
    plan = plan_training(population, growth, "auxiliary")
    assert plan.scaling is not None
    scales = []
    for _ in range(30):
        result = step_gradients(population, plan, x, y, stacks=[population.hosts])
        assert result.loss.isfinite().all()
        plan.scaling.update(result.loss, result.incubation_loss, [g.norm(dim=1) for g in result.gradients])
        scales.append([scale_of(population, environment) for environment in (0, 1)])
    assert scales[0] == [INITIAL_SCALE / 2, INITIAL_SCALE]
    assert scales[-1] == scales[-2] < [INITIAL_SCALE / 2, INITIAL_SCALE]
    assert result.gradients[0].isfinite().all()


@NEEDS_FP16
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_developing_modules_overflow_skips_that_module_only(mapping: str) -> None:
    sites = [(environment, slot, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD) for environment in range(3) for slot in (0, 2)]
    calm, struck = (populate(mapping, range(3), sites, autocast_dtype=FP16) for _ in range(2))
    provoke(struck, 1, 1 + 2)
    stage = nothing(3)
    stage.developing[:, [0, 2]] = True
    born = state(struck.modules[2, CNN_BLUEPRINTS[0]])
    stats = [train(population, stage, num_steps=1) for population in (calm, struck)]
    assert [s.skipped_steps for s in stats] == [0, 1]
    assert same(state(struck.hosts), state(calm.hosts), range(3))
    first, last = ((p.modules[0, CNN_BLUEPRINTS[0]], p.modules[2, CNN_BLUEPRINTS[0]]) for p in (calm, struck))
    assert same(state(last[0]), state(first[0]), range(3))
    assert same(state(last[1]), state(first[1]), [0, 2])
    assert same(state(last[1]), born, [1])
    assert (scale_of(struck, 1, 1 + 2), scale_of(struck, 1, 1 + 0)) == (MAX_SCALE / 2, INITIAL_SCALE)


@NEEDS_FP16
def test_the_gradient_of_a_blended_module_is_unscaled_by_its_host_and_its_overflow_lowers_the_hosts_scale() -> None:
    population = populate("loop", [0, 1], [(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.GATE)], autocast_dtype=FP16)
    stir(population)
    stage = nothing(2)
    stage.alpha[1, 1] = 0.8
    x, y = batch([0, 1])
    gradients = []
    for scale in (2.0**8, 2.0**12):
        assert population.scales is not None
        population.scales.scale[:, HOST] = scale
        plan = plan_training(population, stage, "auxiliary")
        gradients.append(step_gradients(population, plan, x, y, stacks=population.stacks()).gradients)
    for low, high in zip(*gradients, strict=True):
        torch.testing.assert_close(low, high, rtol=0.02, atol=1e-4)
    assert plan.scaling is not None
    module_only = [torch.ones(2), torch.tensor([torch.inf]), torch.ones(1)]
    skipped = plan.scaling.update(torch.ones(2), torch.ones(0), module_only)
    assert [rows.tolist() for rows in skipped] == [[False, False], [True], [False]]
    assert [scale_of(population, environment) for environment in (0, 1)] == [2.0**12, 2.0**11]


def test_a_module_that_learns_from_the_hosts_loss_in_isolation_does_not_lower_the_hosts_scale() -> None:
    population = populate("loop", [0, 1], [(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)], autocast_dtype=FP16)
    stage = nothing(2)
    stage.developing[1, 1] = True
    plan = plan_training(population, stage, "straight_through")
    assert plan.scaling is not None
    skipped = plan.scaling.update(torch.ones(2), torch.ones(0), [torch.ones(2), torch.tensor([torch.inf])])
    assert [rows.tolist() for rows in skipped] == [[False, False], [True]]
    assert [scale_of(population, environment) for environment in (0, 1)] == [INITIAL_SCALE] * 2


def test_a_scale_is_halved_by_an_overflow_and_doubled_after_long_without() -> None:
    scale, age = torch.tensor([8.0, 8.0, MIN_SCALE, MAX_SCALE]), torch.zeros(4)
    overflowed = torch.tensor([True, False, True, False])
    scale, age = next_scales(scale, age, overflowed)
    assert scale.tolist() == [4.0, 8.0, MIN_SCALE, MAX_SCALE]
    for _ in range(GROWTH_INTERVAL - 1):
        assert scale[0] == 4.0
        scale, age = next_scales(scale, age, torch.zeros(4, dtype=torch.bool))
    assert scale.tolist() == [4.0, 16.0, MIN_SCALE, MAX_SCALE]
    scale, age = next_scales(scale, age, torch.zeros(4, dtype=torch.bool))
    assert scale.tolist() == [8.0, 16.0, 2 * MIN_SCALE, MAX_SCALE]


@NEEDS_FP16
def test_new_hosts_and_new_modules_start_with_the_scale_of_a_beginner() -> None:
    population = populate("loop", range(3), [(0, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)], autocast_dtype=FP16)
    assert population.scales is not None
    for environment in range(3):
        provoke(population, environment)
        provoke(population, environment, 1 + 1)
    population.reset([0, 2], population.hosts.values.detach()[[0, 2]], torch.ones_like(population.hosts.values[[0, 2]]))
    assert [scale_of(population, environment) for environment in range(3)] == [INITIAL_SCALE, MAX_SCALE, INITIAL_SCALE]
    population.germinate(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD, torch.Generator().manual_seed(0))
    assert (scale_of(population, 1), scale_of(population, 1, 1 + 1)) == (MAX_SCALE, INITIAL_SCALE)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_only_fp16_scales_its_losses(dtype: torch.dtype | None) -> None:
    assert populate("loop", [0], autocast_dtype=dtype).scales is None


# ----------------------------------------------------------------------------------------------------------- statistics


@NEEDS_FP16
def test_skipped_steps_are_left_out_of_mean_gradient_norms_and_probes() -> None:
    population = populate("loop", range(3), [(2, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)], autocast_dtype=FP16)
    reference = populate("loop", range(3), [(2, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)], autocast_dtype=FP16)
    stage = nothing(3)
    stage.developing[2, 1] = True
    provoke(population, 0)
    provoke(population, 2, 1 + 1)
    few, calm = train(population, stage, num_steps=2), train(reference, stage, num_steps=2)
    assert few.host_norm[0].isnan(), "every step was skipped: not measured"
    assert few.module_norm[2, 1].isnan()
    assert torch.equal(few.host_norm[1:], calm.host_norm[1:])
    assert few.loss.isfinite().all()
    more = train(population, stage, num_steps=40)
    assert 0 < more.skipped_steps < 40
    assert 0.05 < more.host_norm[0] < 20
    assert 1e-4 < more.module_norm[2, 1] < 20


@NEEDS_FP16
def test_a_probe_on_a_skipped_step_is_not_measured() -> None:
    population = populate("loop", range(2), autocast_dtype=FP16)
    provoke(population, 1)
    images, labels = pool()
    order = orders(range(2), 16)
    stats = train_epoch(
        population, images, labels, order, nothing(2), incubation="auxiliary", num_steps=1, lr=0.01, probe=True
    )
    assert stats.probes is not None
    assert stats.probes[0].isfinite().all()
    assert stats.probes[1].isnan().all()


@NEEDS_FP16
def test_a_gradient_of_a_loss_that_is_not_finite_counts_as_one_and_lowers_no_scale() -> None:
    population = populate("loop", range(2), autocast_dtype=FP16)
    plan = plan_training(population, nothing(2), "auxiliary")
    norms = GradientNorms(2, plan.scaling)
    empty = torch.zeros(0)
    norms.add([torch.tensor([torch.nan, 1.0])], torch.tensor([torch.nan, 1.0]), empty)
    norms.add([torch.tensor([2.0, torch.inf])], torch.tensor([1.0, 1.0]), empty)
    assert norms.means()[0].tolist() == [torch.inf, 1.0]
    assert norms.num_skipped() == 1
    assert [scale_of(population, environment) for environment in (0, 1)] == [INITIAL_SCALE, INITIAL_SCALE / 2]


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
        plan = plan_training(population, growth, "auxiliary")
        results.append(step_gradients(population, plan, x, y, stacks=population.stacks()))
    assert (results[0].loss - results[1].loss).abs().max() < 2e-3
    for ours, theirs in zip(results[1].gradients, results[0].gradients, strict=True):
        assert ((ours - theirs).norm(dim=1) / theirs.norm(dim=1).clamp(min=1e-3)).max() < 0.3
    if dtype is FP16:
        struck = populate(mapping, range(4), autocast_dtype=FP16, device="cuda")
        provoke(struck, 1)
        born = state(struck.hosts)
        images, labels = (tensor.to("cuda") for tensor in pool())
        order = orders(range(4), 16)
        train_epoch(struck, images, labels, order, nothing(4), incubation="auxiliary", num_steps=1, lr=0.01)
        assert same(state(struck.hosts), born, [1])
        assert all(not same(state(struck.hosts), born, [row]) for row in (0, 2, 3))
