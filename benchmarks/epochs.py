"""Epochs of growing hosts, under Esper and in plain PyTorch.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.bare import BareTraining
from esper.envs.instances import Instance
from esper.envs.loader import InstanceLoader
from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.growth.blending import BlendedModule
from esper.hosts import SegmentedHost
from esper.population import PROBE_NAMES, GrowthStage, Population, Questions, train_epoch, valuate
from esper.runtime.rng import generator

Epoch = Callable[[], object]


def germinate(population: Population, slots: Sequence[int], blueprint: Blueprint = Blueprint.CONV_LIGHT) -> None:
    """Put a module into the given slots of every environment, blended by ADD."""
    for env in range(population.num_envs):
        for slot in slots:
            population.germinate(env, slot, int(blueprint), BlendAlgorithm.ADD, generator("benchmark", env, slot))


def stage_of(population: Population, alpha: float) -> GrowthStage:
    """Return the growth stage in which all modules have one alpha; alpha 0 is isolation."""
    present = population.blueprint >= 0
    alphas: Tensor = alpha * present.double()
    return GrowthStage(alpha=alphas, developing=present & (alphas == 0), isolated=torch.zeros_like(present))


class Growing:
    """The hosts of a benchmark setting, run by Esper.

    Args:
        loader: data and training settings of the hosts.
        population: hosts and modules, changed in place.
        instances: instances of the hosts.
    """

    def __init__(self, loader: InstanceLoader, population: Population, instances: Sequence[Instance]) -> None:
        self.loader, self.population, self.instances = loader, population, instances
        self.samples = loader.val(instances)

    def epoch(
        self,
        stage: GrowthStage,
        *,
        incubation: Incubation = Incubation.auxiliary,
        probe: bool = False,
        all_off: bool = False,
    ) -> None:
        """Run one epoch as the environment does: data order, training, validation and contributions of modules.

        Args:
            stage: growth stage of the modules.
            incubation: training method of isolated modules.
            probe: measure slot probes too.
            all_off: validate without any module too.
        """
        training, num_envs = self.loader.training, self.population.num_envs
        train_epoch(
            self.population,
            self.loader.train(self.instances),
            self.loader.order(self.instances, [0] * num_envs),
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
            Questions(
                alpha=stage.alpha,
                developing=stage.developing,
                kept=torch.zeros_like(stage.developing),
                kept_wanted=torch.full((num_envs,), all_off),
                pairs_due=torch.zeros(num_envs, dtype=torch.bool),
            ),
        )


def static_network(population: Population, environment: int, alpha: float) -> SegmentedHost:
    """Build the grown network of one environment as an ordinary network, in which fully blended modules are plain
    layers.
    """
    network = population.grown(environment, [alpha] * len(population.slot_ids))
    for slot_id, module in list(network.attached.items()):
        assert isinstance(module, BlendedModule)
        if alpha == 1.0 and module.algorithm is BlendAlgorithm.ADD:
            network.detach(slot_id)
            network.attach(slot_id, module.body)
    return network


def each(hosts: Sequence[BareTraining]) -> Epoch:
    """Return an epoch that trains the hosts one after the other."""

    def epoch() -> None:
        for host in hosts:
            host.epoch()

    return epoch
