"""Epochs of growing hosts, by Esper as its environment runs them, and by plain PyTorch.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.bare import BareTraining
from esper.envs.instances import Instance
from esper.envs.twins import Nursery
from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.growth.blending import BlendedModule
from esper.hosts import SegmentedHost
from esper.population import PROBE_NAMES, GrowthStage, Population, train_epoch, valuate
from esper.runtime.rng import generator

Epoch = Callable[[], object]


def germinate(population: Population, slots: Sequence[int], blueprint: Blueprint = Blueprint.CONV_LIGHT) -> None:
    """Put a module into the given slots of every environment, to be blended by ADD."""
    for env in range(population.num_envs):
        for slot in slots:
            population.germinate(env, slot, int(blueprint), BlendAlgorithm.ADD, generator("benchmark", env, slot))


def stage_of(population: Population, alpha: float) -> GrowthStage:
    """All modules at one alpha; in isolation at 0."""
    present = population.blueprint >= 0
    alphas: Tensor = alpha * present.double()
    return GrowthStage(alpha=alphas, developing=present & (alphas == 0), isolated=torch.zeros_like(present))


class Growing:
    """Hosts of a setting under Esper.

    Args:
        nursery: data, and how hosts are trained.
        population: hosts and modules, changed in place.
        instances: of the hosts.
    """

    def __init__(self, nursery: Nursery, population: Population, instances: Sequence[Instance]) -> None:
        self.nursery, self.population, self.instances = nursery, population, instances
        self.samples = nursery.val(instances)

    def epoch(
        self, stage: GrowthStage, *, incubation: str = "auxiliary", probe: bool = False, all_off: bool = False
    ) -> None:
        """An epoch as the environment runs it: data order, training, validation, what each module is worth.

        Args:
            stage: of the modules.
            incubation: how modules in isolation learn.
            probe: measure slot probes too.
            all_off: validate without any module too.
        """
        training, task, num_envs = self.nursery.training, self.nursery.task, self.population.num_envs
        train_epoch(
            self.population,
            task.train.inputs,
            task.train.targets,
            self.nursery.order(self.instances, [0] * num_envs),
            stage,
            incubation=incubation,
            num_steps=training.steps_per_epoch,
            lr=training.lr,
            max_grad_norm=training.max_grad_norm,
            probes=PROBE_NAMES if probe else (),
        )
        valuate(
            self.population,
            self.samples,
            alpha=stage.alpha,
            developing=stage.developing,
            kept=torch.zeros_like(stage.developing),
            kept_wanted=torch.full((num_envs,), all_off),
            pairs_due=torch.zeros(num_envs, dtype=torch.bool),
        )


def static_network(population: Population, environment: int, alpha: float) -> SegmentedHost:
    """One grown network as one would write it down: what is fully blended in is simply a layer."""
    network = population.grown(environment, [alpha] * len(population.slot_ids))
    for slot_id, module in list(network.slots.items()):
        assert isinstance(module, BlendedModule)
        if alpha == 1.0 and module.algorithm is BlendAlgorithm.ADD:
            network.detach(slot_id)
            network.attach(slot_id, module.body)
    return network


def each(hosts: Sequence[BareTraining]) -> Epoch:
    """An epoch of one host after the other."""

    def epoch() -> None:
        for host in hosts:
            host.epoch()

    return epoch
