"""Loss scales of fp16: an overflow affects its owner only, and is not a gradient."""

from __future__ import annotations

import pytest
import torch
from helpers import NEEDS_FP16

from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, PROBE_NAMES, train_epoch
from esper.population.scaling import GROWTH_INTERVAL, INITIAL_SCALE, MAX_SCALE, MIN_SCALE, GradientNorms, next_scales
from esper.population.training import plan_parts, plan_scaling
from esper.tasks.batches import TrainingSamples
from tests.population.growing import CNN_BLUEPRINTS, batch, nothing, orders, pool, populate, stir
from tests.population.halves import FP16, HOST, one_step, provoke, same, scale_of, state, train

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
    scales = []
    for _ in range(30):
        result, scaling = one_step(population, growth, x, y)
        assert scaling is not None
        assert result.loss.isfinite().all()
        scaling.update(result.loss, result.incubation_loss, [g.norm(dim=1) for g in result.gradients])
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
        step, scaling = one_step(population, stage, x, y)
        gradients.append(step.gradients)
    for low, high in zip(*gradients, strict=True):
        torch.testing.assert_close(low, high, rtol=0.02, atol=1e-4)
    assert scaling is not None
    module_only = [torch.ones(2), torch.tensor([torch.inf]), torch.ones(1)]
    skipped = scaling.update(torch.ones(2), torch.ones(0), module_only)
    assert [rows.tolist() for rows in skipped] == [[False, False], [True], [False]]
    assert [scale_of(population, environment) for environment in (0, 1)] == [2.0**12, 2.0**11]


def test_a_module_that_learns_from_the_hosts_loss_in_isolation_does_not_lower_the_hosts_scale() -> None:
    population = populate("loop", [0, 1], [(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)], autocast_dtype=FP16)
    stage = nothing(2)
    stage.developing[1, 1] = True
    scaling = plan_scaling(population, stage, plan_parts(population, stage, "straight_through"))
    assert scaling is not None
    skipped = scaling.update(torch.ones(2), torch.ones(0), [torch.ones(2), torch.tensor([torch.inf])])
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
        population,
        TrainingSamples(images, labels),
        order,
        nothing(2),
        incubation="auxiliary",
        num_steps=1,
        lr=0.01,
        probes=PROBE_NAMES,
    )
    assert stats.probes is not None
    assert stats.probes[0].isfinite().all()
    assert stats.probes[1].isnan().all()


@NEEDS_FP16
def test_a_gradient_of_a_loss_that_is_not_finite_counts_as_one_and_lowers_no_scale() -> None:
    population = populate("loop", range(2), autocast_dtype=FP16)
    norms = GradientNorms(2, plan_scaling(population, nothing(2), plan_parts(population, nothing(2), "auxiliary")))
    empty = torch.zeros(0)
    norms.add([torch.tensor([torch.nan, 1.0])], torch.tensor([torch.nan, 1.0]), empty)
    norms.add([torch.tensor([2.0, torch.inf])], torch.tensor([1.0, 1.0]), empty)
    assert norms.means()[0].tolist() == [torch.inf, 1.0]
    assert norms.num_skipped().tolist() == [1]
    assert [scale_of(population, environment) for environment in (0, 1)] == [INITIAL_SCALE, INITIAL_SCALE / 2]
