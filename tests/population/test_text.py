"""Transformers in a population: all mappings agree with the loop, and growing is isolated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS, blueprint_ids, compatible
from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.hosts import SegmentedHost, build_host
from esper.population import (
    PROBE_NAMES,
    GrowthStage,
    Population,
    Samples,
    build_mapping,
    count_multiply_adds,
    evaluate,
    probe_hosts,
    train_epoch,
)
from esper.population.layout import flatten_parameters
from esper.population.losses import row_losses, weighted_sums
from esper.population.probes import slot_probes
from esper.population.training import plan_parts, step_gradients
from esper.runtime.rng import generator
from esper.tasks.batches import TrainingSamples
from esper.tasks.data import IGNORED
from tests.tiers import few

VOCABULARY, CONTEXT, WIDTH, NUM_SLOTS, NUM_ENVS = 32, 12, 16, 4, 4
IDS = [blueprint_ids().index(name) for name in BLUEPRINTS["transformer"]]
RUNNING = ["loop", "vmap", "matmul"]


def text_host() -> SegmentedHost:
    shape = {"num_layers": 2, "width": WIDTH, "num_heads": 4, "mlp_width": 24}
    return build_host("transformer", context_length=CONTEXT, num_classes=VOCABULARY, **shape)


def populate(
    mapping: str, *, modules: bool = True, dtype: torch.dtype = torch.float32, num_envs: int = NUM_ENVS
) -> Population:
    """Hosts with all blueprints and blends among them, as if they had been trained for a while."""
    host = text_host()
    population = Population(host, host.slot_ids, num_envs, build_mapping(mapping), dtype=dtype)
    rows = []
    for environment in range(num_envs):
        host.reset(generator("host", environment))
        rows.append(flatten_parameters(host.segments))
    values = torch.stack(rows)
    population.reset(range(num_envs), values, torch.ones_like(values, dtype=torch.bool))
    for number in range(num_envs * NUM_SLOTS if modules else 0):
        environment, slot = divmod(number, NUM_SLOTS)
        stream = generator("module", environment, slot)
        population.germinate(environment, slot, IDS[number % len(IDS)], BlendAlgorithm(number % 3), stream)
    for (slot, blueprint), stack in population.modules.items():
        for row, environment in enumerate(stack.environments):
            noise = torch.randn(stack.values.shape[1], generator=generator("stir", environment, slot, blueprint))
            with torch.no_grad():
                stack.values[row] += (0.1 * noise).to(stack.values)
    return population


def stage(num_envs: int = NUM_ENVS, *, developing: bool = True, blended: bool = True) -> GrowthStage:
    """Every other module in isolation, the others at their own alphas."""
    turn = torch.arange(num_envs)[:, None] + torch.arange(NUM_SLOTS)
    apart = turn % 2 == 0
    alpha = torch.where(apart, 0.0, 0.2 + 0.1 * (turn % 5)) * blended
    return GrowthStage(alpha=alpha.double(), developing=apart & developing, isolated=(turn % 3 == 0) & ~apart & blended)


def text(count: int = 40) -> tuple[Tensor, Tensor]:
    """Windows and their next tokens, which follow from the one before."""
    stream = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator("text"))
    for position in range(1, CONTEXT + 1):
        stream[:, position] = (5 * stream[:, position - 1] + 1) % VOCABULARY
    return stream[:, :-1], stream[:, 1:]


def train(population: Population, growth: GrowthStage, epochs: int = 1, incubation: str = "auxiliary") -> list[Tensor]:
    inputs, targets = text()
    trace = []
    for epoch in range(epochs):
        size = population.num_envs, 24
        order = torch.randint(len(inputs), size, generator=generator("order", epoch))
        stats = train_epoch(
            population,
            TrainingSamples(inputs, targets),
            order,
            growth,
            incubation=incubation,
            num_steps=3,
            lr=0.01,
            probes=PROBE_NAMES,
        )
        samples = Samples(inputs=inputs, targets=targets, weights=torch.ones(population.num_envs, len(inputs)))
        scores, _ = evaluate(population, samples, growth.alpha)
        assert stats.probes is not None
        trace += [stats.loss, stats.host_norm, scores.points, scores.loss, stats.probes.flatten()]
    return [*trace, *(stack.values.detach().flatten() for stack in population.stacks())]


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", ["vmap", "matmul"])
def test_one_step_agrees_with_the_loop_in_fp32(mapping: str, incubation: str) -> None:
    inputs, targets = text()
    batch = torch.randint(len(inputs), (NUM_ENVS, 8), generator=generator("batch"))
    steps = []
    for name in ("loop", mapping):
        population = populate(name)
        parts = plan_parts(population, stage(), incubation)
        steps.append(step_gradients(population, parts, TrainingSamples(inputs, targets), batch, probes=()))
    assert len(steps[0].gradients) > 10
    for ours, theirs in zip([steps[1].loss, *steps[1].gradients], [steps[0].loss, *steps[0].gradients], strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max().clamp(min=1e-3)


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", ["vmap", "matmul"])
def test_several_epochs_agree_with_the_loop_in_float64(mapping: str, incubation: str) -> None:
    lives = [
        torch.cat([part.double() for part in train(populate(name, dtype=torch.float64), stage(), 4, incubation)])
        for name in ("loop", mapping)
    ]
    # Probes are rounded to fp32 for observations.
    assert (lives[0] - lives[1]).abs().max() <= 1e-6
    hosts = [life[-populate("loop").hosts.values.numel() :] for life in lives]
    assert (hosts[0] - hosts[1]).abs().max() <= 1e-9


def test_grouped_convolutions_refuse_text_by_name_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"the grouped mapping has no form of 'embedding'; use env.mapping=vmap"):
        populate("grouped")


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", RUNNING)
@few(2)
def test_modules_in_isolation_leave_hosts_and_their_optimizer_bit_equal(mapping: str, incubation: str) -> None:
    bare, grown = populate(mapping, modules=False), populate(mapping)
    before = {key: stack.values.detach().clone() for key, stack in grown.modules.items()}
    alone = stage(blended=False)
    train(bare, stage(developing=False, blended=False), 2, incubation)
    train(grown, alone, 2, incubation)
    for name in ("values", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(grown.hosts, name), getattr(bare.hosts, name))
    for (slot, blueprint), stack in grown.modules.items():
        for row, environment in enumerate(stack.environments):
            moved = not torch.equal(stack.values[row], before[slot, blueprint][row])
            assert moved == bool(alone.developing[environment, slot])


@pytest.mark.parametrize("mapping", RUNNING)
def test_a_grown_network_is_a_plain_module_that_computes_the_same(mapping: str) -> None:
    population = populate(mapping, dtype=torch.float64)
    growth = stage()
    train(population, growth)
    inputs, targets = text()
    weights = torch.ones(NUM_ENVS, len(inputs))
    scores, _ = evaluate(population, Samples(inputs=inputs, targets=targets, weights=weights), growth.alpha)
    network = population.grown(2, growth.alpha[2].tolist())
    with torch.no_grad():
        logits = network(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert abs(float(scores.loss[2] - loss)) < 1e-9
    right = logits.softmax(dim=2).gather(2, targets[..., None]).mean()
    assert abs(float(scores.points[2] - 100 * right)) < 1e-7
    assert abs(float(scores.accuracy[2]) - float((logits.argmax(dim=2) == targets).double().mean())) < 1e-9
    assert network.segments[0].embedding.token is network.segments[-1].head.token


def test_hosts_learn_text() -> None:
    population = populate("matmul", modules=False)
    losses = [train(population, stage(developing=False, blended=False))[3].mean() for _ in range(40)]
    assert abs(float(losses[0]) - math.log(VOCABULARY)) < 0.5
    assert losses[-1] < losses[0] - 1.0


def test_targets_that_are_ignored_count_nowhere() -> None:
    logits = torch.randn(3, 2, 5, 7, generator=generator("logits"), requires_grad=True)
    targets = torch.randint(7, (2, 5), generator=generator("targets"))
    short = targets.clone()
    short[1, 3:] = IGNORED
    losses = row_losses(logits, short.expand(3, 2, 5))
    kept = torch.cat([logits[:, 0], logits[:, 1, :3]], dim=1).flatten(0, 1)
    right = torch.cat([targets[0], targets[1, :3]]).repeat(3)
    torch.testing.assert_close(losses.mean(), nn.functional.cross_entropy(kept, right))
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad[:, 1, 3:].abs().max() == 0
    # Of a sample, the mean over what counts; of samples, the weighted sum.
    weights = torch.tensor([[5 / 8, 3 / 8]]).expand(3, 2)
    sums = weighted_sums(logits.detach(), short, weights)
    torch.testing.assert_close(sums[1], losses.detach().double(), rtol=1e-6, atol=1e-6)
    hits = (logits.argmax(dim=3) == targets)[:, [0] * 5 + [1] * 3, [*range(5), *range(3)]]
    torch.testing.assert_close(sums[2], hits.double().mean(dim=1), rtol=1e-6, atol=1e-6)


def test_probes_of_sequences_are_those_of_their_features() -> None:
    x = torch.randn(2, 3, 5, 8, generator=generator("x"))  # [E, B, T, C]
    x[..., 6:] = 0.0
    gradient = 1e-3 * torch.randn(x.shape, generator=generator("gradient"))
    dead, rank, norm, gain = slot_probes([x], [gradient])[:, 0].T
    assert dead.tolist() == [0.25, 0.25]
    assert (rank > 0.3).all()
    assert (rank <= 0.75).all()
    torch.testing.assert_close(norm, (gradient.flatten(1).norm(dim=1).log10() + 2) / 3)
    weight = torch.stack([gradient[e].flatten(0, 1).T @ x[e].flatten(0, 1) for e in range(2)])
    torch.testing.assert_close(gain, (weight.flatten(1).norm(dim=1).log10() + 2) / 3)


@pytest.mark.parametrize("mapping", RUNNING)
def test_every_slot_of_a_bare_host_is_probed(mapping: str) -> None:
    inputs, targets = text(NUM_ENVS * 4)
    x, y = inputs.view(NUM_ENVS, 4, CONTEXT), targets.view(NUM_ENVS, 4, CONTEXT)
    probes = probe_hosts(populate(mapping, modules=False), x, y)
    assert probes.shape == (NUM_ENVS, NUM_SLOTS, len(PROBE_NAMES))
    assert probes.isfinite().all()
    torch.testing.assert_close(probes, probe_hosts(populate("loop", modules=False), x, y), rtol=1e-4, atol=1e-4)


def test_multiply_adds_are_those_of_products_by_hand() -> None:
    host = text_host()
    fits = compatible(place.site for place in host.places)
    costs = count_multiply_adds(host, host.slot_ids, fits, torch.zeros(1, CONTEXT, dtype=torch.long))
    attention, mlp = 4 * WIDTH * WIDTH + 2 * CONTEXT * WIDTH, 2 * WIDTH * 24
    head = WIDTH * VOCABULARY
    assert costs.host == CONTEXT * (2 * (attention + mlp) + head)
    assert costs.suffix.tolist() == [
        CONTEXT * (n * attention + m * mlp + head) for n, m in ((1, 2), (1, 1), (0, 1), (0, 0))
    ]
    module = dict(zip(blueprint_ids(), costs.module[0].tolist(), strict=True))
    expected = {
        "norm": 0,
        "lora": 16 * WIDTH,
        "lora_large": 64 * WIDTH,
        "mlp_small": 4 * WIDTH * WIDTH,
        "mlp": 8 * WIDTH * WIDTH,
        "attention": attention,
        "flex_attention": attention,
    }
    assert {name: module[name] for name in expected} == {name: CONTEXT * count for name, count in expected.items()}
