"""One epoch of training and validating digits hosts, with and without modules, under each mapping."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bare import BareIncubation, BareTraining, bare_network
from benchmarks.epochs import Epoch, Growing, each, stage_of
from benchmarks.records import Record
from benchmarks.scale import Scale, experiment_of
from benchmarks.timing import interleave, records
from esper.envs.instances import Instance
from esper.experiment.build import Experiment
from esper.growth.actions import BlendAlgorithm
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS, Population, build_mapping
from esper.runtime.rng import generator

SECTION = "hosts"
FLOOR = "bare host"
GROWN = "bare host + modules"
MODULES = 2
"""Number of modules per host, in the first slots, where maps are largest."""

BLENDED_ALPHA = 0.5


@dataclass(frozen=True, slots=True)
class Growth:
    """A workload: number of modules per host and their alpha; alpha 0 is isolation."""

    name: str
    num_modules: int
    alpha: float


WORKLOADS = (
    Growth("no modules", 0, 0.0),
    Growth("two developing", MODULES, 0.0),
    Growth("two blended", MODULES, BLENDED_ALPHA),
)


def run(scale: Scale) -> list[Record]:
    """Time training and validation, in milliseconds per environment and epoch."""
    experiment, found = experiment_of(scale.preset), []
    for num_envs, rounds in scale.hosts:
        instances = experiment.pool("train", num_envs).instances
        for growth in WORKLOADS:
            seconds = interleave(_contenders(experiment, instances, growth), rounds, clock=scale.clock)
            found += records(
                seconds,
                section=SECTION,
                workload=growth.name,
                hosts=num_envs,
                floor=FLOOR,
                grown=GROWN if growth.num_modules else None,
                per=num_envs,
                samples=experiment.loader.training.steps_per_epoch * experiment.loader.training.batch_size,
            )
    return found


def _contenders(experiment: Experiment, instances: tuple[Instance, ...], growth: Growth) -> dict[str, Epoch]:
    populations = {name: grown_population(experiment, instances, growth, name) for name in MAPPINGS}
    contenders: dict[str, Epoch] = {
        FLOOR: each([BareTraining(bare_network(experiment.host), experiment.loader) for _ in instances])
    }
    if growth.num_modules:
        contenders[GROWN] = _bare_grown(experiment, populations["loop"], growth)
    for name, population in populations.items():
        contenders[f"Esper, {name}"] = _epoch_of(experiment, population, instances, growth)
    return contenders


def grown_population(
    experiment: Experiment, instances: tuple[Instance, ...], growth: Growth, mapping: str
) -> Population:
    """Build hosts at birth whose modules cycle through all blueprints and blend algorithms."""
    num_envs = len(instances)
    population = Population(experiment.host, experiment.slot_ids, num_envs, build_mapping(mapping))
    experiment.loader.place(population, range(num_envs), instances)
    for env in range(num_envs):
        for slot in range(growth.num_modules):
            offered = experiment.compatible[slot].nonzero().flatten().tolist()
            turn = env * growth.num_modules + slot
            algorithm = BlendAlgorithm(turn % len(BlendAlgorithm))
            stream = generator("benchmark", env, slot)
            population.germinate(env, slot, offered[turn % len(offered)], algorithm, stream)
    return population


def _epoch_of(experiment: Experiment, population: Population, instances: tuple[Instance, ...], growth: Growth) -> Epoch:
    growing, stage = Growing(experiment.loader, population, instances), stage_of(population, growth.alpha)
    return lambda: growing.epoch(stage, probe=True)


def _bare_grown(experiment: Experiment, population: Population, growth: Growth) -> Epoch:
    """Train the same modules in plain PyTorch, validated once per epoch without contributions."""

    def trained(env: int) -> BareTraining:
        alpha = [growth.alpha or 1.0] * len(population.slot_ids)
        network: SegmentedHost = population.grown(env, alpha)
        if growth.alpha:
            return BareTraining(network, experiment.loader)
        modules = {place: network.detach(network.slot_ids[place]) for place in range(growth.num_modules)}
        return BareIncubation(network, modules, experiment.loader)

    return each([trained(env) for env in range(population.num_envs)])
