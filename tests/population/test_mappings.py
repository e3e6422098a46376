"""All mappings compute the same, and a population of E equals E populations of one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, Population, Samples, build_mapping, evaluate, train_epoch
from esper.population.mapping import COMPILED_MAPPINGS
from esper.population.training import GrowthStage, part_gradients, plan_training
from esper.runtime.options import MappingName
from esper.tasks.batches import TrainingSamples
from tests.population.growing import (
    CNN_BLUEPRINTS,
    batch,
    digits_host,
    nothing,
    orders,
    pool,
    populate,
    random_growth,
    rows_of,
    stir,
)
from tests.tiers import few

STACKED = [name for name in MAPPINGS if name != "loop"]
NUM_ENVS = 6


def one_step(
    population: Population, growth: GrowthStage, incubation: str, numbers: list[int], size: int = 16
) -> list[Tensor]:
    """Loss and all gradients of one step on batches of ``size``, by environment, slot and owner."""
    x, y = batch(numbers, size=size)
    stacks = population.stacks()
    plan = plan_training(population, growth, incubation)
    result = part_gradients(population, plan, x, y, stacks=stacks)
    rows: dict[tuple[int, ...], Tensor] = {}
    keys = [(), *population.modules, *((slot,) for slot in population.gates)]
    for key, stack, gradient in zip(keys, stacks, result.gradients, strict=True):
        for row, environment in enumerate(stack.environments):
            rows[(numbers[environment], *key)] = gradient[row]
    return [result.loss, *(rows[key] for key in sorted(rows))]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Relative to the size of each owner's gradient."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1e-3)


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", STACKED)
@pytest.mark.parametrize("seed", range(4))
@few(6)
def test_one_step_agrees_with_the_loop_in_fp32(mapping: str, incubation: str, seed: int) -> None:
    sites, growth = random_growth(seed, NUM_ENVS)
    numbers = list(range(NUM_ENVS))
    results = []
    for name in ("loop", mapping):
        population = populate(name, numbers, sites)
        stir(population)
        results.append(one_step(population, growth, incubation, numbers))
    assert_close(results[1], results[0], 1e-5)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_population_of_many_agrees_with_many_populations_of_one(mapping: str) -> None:
    sites, growth = random_growth(11, NUM_ENVS)
    together = populate(mapping, range(NUM_ENVS), sites)
    joint = one_step(together, growth, "auxiliary", list(range(NUM_ENVS)))
    losses, gradients = [], []
    for number in range(NUM_ENVS):
        alone = one_step(populate(mapping, [number], sites), rows_of(growth, [number]), "auxiliary", [number])
        losses.append(alone[0])
        gradients += alone[1:]
    assert_close(joint, [torch.cat(losses), *gradients], 1e-5)


def scripted_life(population: Population, incubation: str) -> Tensor:
    """Germination, isolation, blending, a change of algorithm, a cull and a fossil, one epoch each, in float64."""
    images, labels = pool()
    numbers = list(range(population.num_envs))
    stage = nothing(population.num_envs)
    trace = []
    for epoch in range(7):
        if epoch == 1:
            for environment in numbers:
                blueprint = CNN_BLUEPRINTS[environment % len(CNN_BLUEPRINTS)]
                stream = torch.Generator().manual_seed(environment)
                population.germinate(environment, environment % 3, blueprint, BlendAlgorithm(environment % 3), stream)
                stage.developing[environment, environment % 3] = True
        if epoch == 3:
            stage.alpha[stage.developing] = 0.6
            stage.isolated[stage.developing] = True
            stage.developing[:] = False
        if epoch == 4:
            stage.isolated[:] = False
            population.restyle(0, 0, BlendAlgorithm.GATE)
            population.restyle(2, 2, BlendAlgorithm.ADD)
        if epoch == 5:
            population.remove(1, 1)
            stage.alpha[1, 1] = 0.0
        stats = train_epoch(
            population,
            TrainingSamples(images, labels),
            orders(numbers, 48, epoch),
            stage,
            incubation=incubation,
            num_steps=3,
            lr=0.01,
        )
        samples = Samples(inputs=images, targets=labels, weights=torch.ones(population.num_envs, len(labels)))
        scores, _ = evaluate(population, samples, stage.alpha)
        trace += [stats.loss, stats.host_norm, scores.points, scores.loss]
    return torch.cat([torch.cat(trace), population.hosts.values.detach().flatten()])


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", STACKED)
@few(2)
def test_a_scripted_life_agrees_with_the_loop_in_float64(mapping: str, incubation: str) -> None:
    lives = [scripted_life(populate(name, range(4), dtype=torch.float64), incubation) for name in ("loop", mapping)]
    assert (lives[0] - lives[1]).abs().max() <= 1e-9


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_stacks_of_eight_and_sixteen_agree_bit_for_bit(mapping: str) -> None:
    sites, _growth = random_growth(3, 16)
    few = populate(mapping, range(8), sites)
    many = populate(mapping, range(16), sites)
    images, labels = pool()
    for population in (few, many):
        numbers = list(range(population.num_envs))
        empty = nothing(population.num_envs)
        train_epoch(
            population,
            TrainingSamples(images, labels),
            orders(numbers, 64),
            empty,
            incubation="auxiliary",
            num_steps=2,
            lr=0.01,
        )
    assert torch.equal(few.hosts.values, many.hosts.values[:8])
    assert torch.equal(few.hosts.exp_avg_sq, many.hosts.exp_avg_sq[:8])


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_hosts_numbers_do_not_depend_on_its_place_in_the_stack(mapping: str) -> None:
    """Twins are stacked as high as environments but in another order; never-grow earns exactly 0 only if this holds."""
    forward, backward = list(range(8)), list(reversed(range(8)))
    images, labels = pool()
    values = []
    for numbers in (forward, backward):
        population = populate(mapping, numbers)
        order = orders(numbers, 64)
        train_epoch(
            population, TrainingSamples(images, labels), order, nothing(8), incubation="auxiliary", num_steps=2, lr=0.01
        )
        values.append(population.hosts.values.detach())
    assert torch.equal(values[0], values[1].flip(0))


def test_configuration_offers_every_mapping_and_nothing_else() -> None:
    assert {item.name for item in MappingName} == {"auto", *MAPPINGS, *COMPILED_MAPPINGS}
    for name in MAPPINGS | COMPILED_MAPPINGS:
        assert build_mapping(name).name == name


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("seed", range(3))
@few(4)
def test_the_population_computes_what_the_grown_network_computes(mapping: str, seed: int) -> None:
    sites, growth = random_growth(seed, NUM_ENVS)
    population = populate(mapping, range(NUM_ENVS), sites, torch.float64)
    stir(population)
    images, labels = pool(40)
    samples = Samples(inputs=images, targets=labels, weights=torch.ones(NUM_ENVS, len(labels)))
    scores, _ = evaluate(population, samples, growth.alpha)
    for environment in range(NUM_ENVS):
        grown = population.grown(environment, growth.alpha[environment].tolist())
        logits = grown(images.double())
        probability = logits.softmax(dim=1)[torch.arange(40), labels].mean()
        assert scores.points[environment].item() == pytest.approx(100 * probability.item(), abs=1e-9)
        for slot_id in population.slot_ids:
            assert torch.equal(grown.forward_from(slot_id, grown.forward_to(slot_id, images.double())), logits)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(8), nn.Dropout(0.1)])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_layers_that_mix_samples_or_draw_are_refused_by_name(mapping: str, layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=type(layer).__name__):
        build_mapping(mapping).prepare(nn.Sequential(nn.Conv2d(8, 8, 1), layer))


@pytest.mark.parametrize("mapping", ["grouped", "matmul"])
@pytest.mark.parametrize(
    "module", [nn.Sequential(nn.Softmax(dim=1)), nn.Sequential(nn.Conv2d(8, 8, 3, padding_mode="circular"))]
)
def test_a_rewriting_mapping_refuses_what_it_has_no_form_of(mapping: str, module: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"{mapping} mapping"):
        build_mapping(mapping).prepare(module)


def test_an_unknown_mapping_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'magic'.*loop, vmap, grouped, matmul"):
        build_mapping("magic")


def test_places_that_are_not_slots_change_nothing() -> None:
    host = digits_host()
    images, labels = batch([0, 1])
    losses = []
    for slot_ids in (host.slot_ids, host.slot_ids[1:2]):
        population = Population(host, slot_ids, 2, build_mapping("grouped"), dtype=torch.float64)
        whole = populate("grouped", [0, 1], dtype=torch.float64)
        population.reset([0, 1], whole.hosts.values.detach(), torch.ones_like(whole.hosts.values))
        empty = torch.zeros(2, len(slot_ids), dtype=torch.bool)
        plan = plan_training(
            population, GrowthStage(alpha=empty.double(), developing=empty, isolated=empty), "auxiliary"
        )
        losses.append(part_gradients(population, plan, images, labels, stacks=[population.hosts]).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_fully_blended_module_has_the_same_bits_beside_one_that_is_half_blended(mapping: str) -> None:
    """ADD at alpha 1 is the module's output itself, which is done without arithmetic where all rows are at 1."""
    sites = [(environment, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD) for environment in (0, 1)]
    found = []
    for neighbour in (1.0, 0.5):
        population = populate(mapping, [0, 1], sites)
        stir(population)
        growth = nothing(2)
        growth.alpha[:, 1] = torch.tensor([1.0, neighbour])
        x, y = batch([0, 1])
        plan = plan_training(population, growth, "auxiliary")
        result = part_gradients(population, plan, x, y, stacks=population.stacks())
        found.append([result.loss, *result.gradients])
    for whole, mixed in zip(*found, strict=True):
        assert torch.equal(whole[0], mixed[0])
        assert not torch.equal(whole[1], mixed[1])
