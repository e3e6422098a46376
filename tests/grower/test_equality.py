"""A network under a Grower equals the same network in the population engine, in every epoch."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from nets import QUICK, Script, born, faded, kept, restyled
from schema_defaults import env_settings
from torch import nn

import esper
from esper.blueprints import compatible
from esper.envs.lifecycle import Lifecycle
from esper.growth import Stage
from esper.growth.actions import AlphaTarget, BlendAlgorithm, Blueprint, Style
from esper.hosts import reset_parameters
from esper.population import (
    PROBE_NAMES,
    GrowthStage,
    Population,
    Samples,
    build_mapping,
    train_epoch,
    valuate,
)
from esper.population.layout import flatten_parameters
from esper.runtime.rng import generator
from esper.tasks.batches import TrainingSamples
from tests.population.growing import digits_host, orders, pool
from tests.tiers import slowly

EPOCHS, STEPS, BATCH, LR, SEED = 25, 2, 8, 1e-2, 5

SCRIPT = {
    0: born(0, Style.LINEAR_ADD, Blueprint.CONV_LIGHT),
    1: born(1, Style.LINEAR_MULTIPLY, Blueprint.BOTTLENECK),
    2: born(2, Style.GATED_GATE, Blueprint.ATTENTION),
    7: restyled(0, Style.GATED_GATE),
    8: restyled(1, Style.LINEAR_ADD, AlphaTarget.HALF),
    9: restyled(2, Style.LINEAR_MULTIPLY, AlphaTarget.FULL),
    13: faded(0),
    14: kept(1),
    15: kept(2),
    20: born(0, Style.SIGMOID_ADD, Blueprint.NORM),
}


class Body:
    """The one host of a population."""

    def __init__(self, population: Population) -> None:
        self.population, self.births = population, 0
        self.remove, self.restyle = population.remove, population.restyle
        self.num_parameters, self.finite = population.num_parameters, population.finite
        self.num_host_parameters = population.num_host_parameters

    def germinate(self, environment: int, slot: int, blueprint: int, algorithm: BlendAlgorithm) -> None:
        stream = generator("module", SEED, slot, self.births)
        self.births += 1
        self.population.germinate(environment, slot, blueprint, algorithm, stream)


def weights(model: nn.Module) -> torch.Tensor:
    """The host's parameters, then those of each slot's module."""
    named = [(".esper." in name or name.startswith("slots."), p.flatten()) for name, p in model.named_parameters()]
    return torch.cat([p for grown in (False, True) for own, p in named if own == grown])


@pytest.mark.parametrize(
    ("incubation", "every"), [("auxiliary", 1), slowly("straight_through", 1), slowly("auxiliary", 2)]
)
def test_weights_observations_and_masks_are_those_of_the_engine_in_every_epoch(incubation: str, every: int) -> None:
    images, labels = pool()
    images = images.double()
    host = digits_host()
    reset_parameters(host.segments, generator("host", 0))
    population = Population(host, host.slot_ids, 1, build_mapping("loop"), dtype=torch.float64)
    values = flatten_parameters(host.segments)[None]
    population.reset([0], values, torch.ones_like(values))
    settings = env_settings(
        slot_probes=PROBE_NAMES, probe_every=every, pairs_every=2, incubation=incubation, incubate_every=every
    )
    engine = Lifecycle(
        Body(population),
        host.slot_ids,
        1,
        num_epochs=EPOCHS,
        rules=QUICK,
        compatible=compatible(host.place(slot_id).site for slot_id in host.slot_ids),
        settings=settings,
    )
    scripts = Script(SCRIPT), Script(SCRIPT)
    model = copy.deepcopy(host).double()
    optimizer = torch.optim.Adam(model.parameters(), LR)
    cross_entropy = nn.functional.cross_entropy
    growing = esper.Grower(
        model,
        optimizer,
        slots=["segments.0", "segments.1", "segments.2"],
        controller=scripts[1],
        rules=QUICK,
        num_epochs=EPOCHS,
        incubation=incubation,
        first_loss=lambda: cross_entropy(model(images[:20]), labels[:20]),
        seed=SEED,
    )
    growing._lifecycle.settings = settings
    decider = growing._decider
    growing._decider = replace(decider, settings=replace(decider.settings, incubate_every=every))
    engine.probes = growing._lifecycle.probes
    samples = Samples(inputs=images[:24], targets=labels[:24], weights=torch.ones(1, 24))
    train, stages = TrainingSamples(images, labels), set()
    for epoch in range(EPOCHS):
        engine.act(scripts[0].act(engine.view(engine.observation())))
        engine.tick()
        order, state = orders([0], STEPS * BATCH, epoch), engine.state
        developing = state.developing
        stage = GrowthStage(alpha=state.alpha, developing=developing, isolated=torch.zeros_like(developing))
        stats = train_epoch(
            population,
            train,
            order,
            stage,
            incubation=incubation,
            incubate_every=every,
            num_steps=STEPS,
            lr=LR,
            probes=engine.probes_due(),
        )
        for rows in order[0].chunk(STEPS):
            optimizer.zero_grad(set_to_none=every == 1)
            cross_entropy(model(images[rows]), labels[rows]).backward()
            growing.incubate(lambda rows=rows: cross_entropy(model(images[rows]), labels[rows]))
            optimizer.step()
        torch.testing.assert_close(weights(model), weights(population.grown(0, [0.5] * 3)), rtol=0, atol=1e-9)
        valuation = valuate(population, samples, engine.questions(torch.tensor([epoch + 1 == EPOCHS])))
        engine.record(valuation, module_norm=stats.module_norm, host_norm=stats.host_norm, probes=stats.probes)
        engine.transition()
        engine.end_epoch(valuation.scores.loss, valuation.scores.accuracy)
        growing.end_epoch(lambda: esper.classification_score(model, [(images[:24], labels[:24])]))
        stages |= {Stage(number) for number in state.stage[0].tolist()}
    for found, expected in zip(scripts[1].seen, scripts[0].seen, strict=True):
        torch.testing.assert_close(found.features, expected.features, rtol=0, atol=1e-6)
        assert torch.equal(found.masks.op, expected.masks.op)
        assert torch.equal(found.masks.slot, expected.masks.slot)
        assert torch.equal(found.blueprint_index, expected.blueprint_index)
    assert len(scripts[0].seen) == EPOCHS
    assert stages > {Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED, Stage.CULLED, Stage.EMBARGOED}
    assert growing.sheet()["illegal_actions"] == 0
    assert growing._modules.births == 4
