"""One epoch of training and validating digits hosts, with and without modules, under each mapping.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bare import BareIncubation, BareTraining, bare_network
from benchmarks.records import Record
from benchmarks.scale import Scale, laboratory
from benchmarks.timing import interleave, records
from esper.actions import BlendAlgorithm
from esper.build import Laboratory
from esper.envs.instances import Instance
from esper.hosts import SegmentedHost
from esper.population import MAPPINGS, GrowthStage, Population, build_mapping, train_epoch, valuate
from esper.rng import generator

SECTION = "hosts"
FLOOR = "bare host"
MODULES = 2
"""Modules per host, at the first slots, where maps are largest."""

BLENDED_ALPHA = 0.5


@dataclass(frozen=True, slots=True)
class Growth:
    """A workload: how many modules each host has, and at which alpha; 0 is in isolation."""

    name: str
    num_modules: int
    alpha: float


WORKLOADS = (
    Growth("no modules", 0, 0.0),
    Growth("two developing", MODULES, 0.0),
    Growth("two blended", MODULES, BLENDED_ALPHA),
)


def run(scale: Scale) -> list[Record]:
    """Milliseconds per environment and epoch."""
    lab, found = laboratory(scale.preset), []
    for num_envs, rounds in scale.hosts:
        instances = lab.pool("train", num_envs).instances
        for growth in WORKLOADS:
            seconds = interleave(_contenders(lab, instances, growth), rounds, clock=scale.clock)
            found += records(seconds, section=SECTION, workload=growth.name, hosts=num_envs, floor=FLOOR, per=num_envs)
    return found


def _contenders(lab: Laboratory, instances: tuple[Instance, ...], growth: Growth) -> dict[str, Callable[[], object]]:
    populations = {name: grown_population(lab, instances, growth, name) for name in MAPPINGS}
    contenders = {FLOOR: _bare(lab, len(instances))}
    if growth.num_modules:
        contenders["bare host + modules"] = _bare_grown(lab, populations["loop"], growth)
    for name, population in populations.items():
        contenders[f"Esper, {name}"] = epoch_of(lab, population, instances, growth)
    return contenders


def grown_population(lab: Laboratory, instances: tuple[Instance, ...], growth: Growth, mapping: str) -> Population:
    """Hosts at birth with modules of all blueprints and blend algorithms in turn."""
    num_envs = len(instances)
    population = Population(lab.host, lab.slot_ids, num_envs, build_mapping(mapping))
    lab.nursery.place(population, range(num_envs), instances)
    for env in range(num_envs):
        for slot in range(growth.num_modules):
            offered = lab.compatible[slot].nonzero().flatten().tolist()
            turn = env * growth.num_modules + slot
            algorithm = BlendAlgorithm(turn % len(BlendAlgorithm))
            stream = generator("benchmark", env, slot)
            population.germinate(env, slot, offered[turn % len(offered)], algorithm, stream)
    return population


def epoch_of(
    lab: Laboratory, population: Population, instances: tuple[Instance, ...], growth: Growth
) -> Callable[[], object]:
    """An epoch as the environment runs it: data order, training, probes, validation, contributions."""
    stage, samples, training = growth_stage(population, growth), lab.nursery.val(instances), lab.nursery.training
    nobody = torch.zeros(population.num_envs, dtype=torch.bool)

    def epoch() -> None:
        train_epoch(
            population,
            lab.task.train.images,
            lab.task.train.labels,
            lab.nursery.order(instances, [0] * len(instances)),
            stage,
            incubation="auxiliary",
            num_steps=training.steps_per_epoch,
            lr=training.lr,
            max_grad_norm=training.max_grad_norm,
            probe=True,
        )
        valuate(
            population,
            samples,
            alpha=stage.alpha,
            developing=stage.developing,
            kept=torch.zeros_like(stage.developing),
            kept_wanted=nobody,
            pairs_due=nobody,
        )

    return epoch


def growth_stage(population: Population, growth: Growth) -> GrowthStage:
    """All modules in isolation, or all blended."""
    present = population.blueprint >= 0
    alpha: Tensor = growth.alpha * present.double()
    return GrowthStage(alpha=alpha, developing=present & (alpha == 0), isolated=torch.zeros_like(present))


def _bare(lab: Laboratory, num_envs: int) -> Callable[[], object]:
    training = lab.nursery.training
    return _each(
        [
            BareTraining(bare_network(lab.host), lab.task, training.lr, training.batch_size, training.steps_per_epoch)
            for _ in range(num_envs)
        ]
    )


def _bare_grown(lab: Laboratory, population: Population, growth: Growth) -> Callable[[], object]:
    """The same modules trained by plain PyTorch; validated once, as the network is: no contributions."""
    training = lab.nursery.training
    shape = lab.task, training.lr, training.batch_size, training.steps_per_epoch

    def trained(env: int) -> BareTraining:
        alpha = [growth.alpha or 1.0] * len(population.slot_ids)
        network: SegmentedHost = population.grown(env, alpha)
        if growth.alpha:
            return BareTraining(network, *shape)
        modules = {place: network.detach(network.slot_ids[place]) for place in range(growth.num_modules)}
        return BareIncubation(network, modules, *shape)

    return _each([trained(env) for env in range(population.num_envs)])


def _each(hosts: list[BareTraining]) -> Callable[[], object]:
    def epoch() -> None:
        for host in hosts:
            host.epoch()

    return epoch
