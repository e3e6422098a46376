"""Work that a run requires of its mapping, and its smallest pieces: hosts at birth, one training step.

Axis legend: E = environments, S = slots, B = blueprints, N = samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.growth.stages import Incubation
from esper.hosts import SegmentedHost
from esper.population.counterfactuals import Questions, Samples, valuate
from esper.population.epoch import train_epoch
from esper.population.layout import flatten_parameters
from esper.population.mapping import Mapping
from esper.population.population import Population
from esper.population.training import GrowthStage
from esper.runtime.rng import generator
from esper.tasks.batches import Prepare, TrainingSamples, as_stored

LEARNING_RATE = 1e-3
BLENDED_ALPHA = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work that a run requires of its mapping.

    Attributes:
        host: prototype; its parameters are neither used nor changed.
        slot_ids: places used as slots, in canonical order.
        compatible: ``bool [S, B]``, blueprints that may germinate.
        num_envs: number of hosts trained together.
        inputs, targets: training samples ``[N, ...]``, on the device, as stored.
        val_inputs, val_targets: validation samples, in the same form.
        prepare: function that converts stored inputs to the inputs of hosts.
        batch_size: samples of one step of one host.
        steps_per_epoch: steps between two validations.
        incubation: learning signal of developing modules.
        autocast_dtype: type of products and convolutions, ``None`` for the samples' own type.
    """

    host: SegmentedHost
    slot_ids: tuple[str, ...]
    compatible: Tensor
    num_envs: int
    inputs: Tensor
    targets: Tensor
    val_inputs: Tensor
    val_targets: Tensor
    batch_size: int
    steps_per_epoch: int
    incubation: Incubation
    autocast_dtype: torch.dtype | None = None
    prepare: Prepare = as_stored

    @property
    def device(self) -> torch.device:
        """Device on which hosts are trained."""
        return self.inputs.device


def bare_population(workload: Workload, mapping: Mapping) -> Population:
    """Build hosts at birth, without modules."""
    host, num_envs = workload.host, workload.num_envs
    population = Population(
        host,
        workload.slot_ids,
        num_envs,
        mapping,
        device=workload.device,
        autocast_dtype=workload.autocast_dtype,
    )
    values = []
    for env in range(num_envs):
        host.reset(generator("calibration", env))
        values.append(flatten_parameters(host.segments))
    population.reset(range(num_envs), torch.stack(values), torch.ones_like(torch.stack(values), dtype=torch.bool))
    return population


def train_step(workload: Workload, population: Population, growth: GrowthStage, probes: Sequence[str] = ()) -> None:
    """Take one training step and copy its statistics to the CPU, so that the device has finished on return."""
    size = population.num_envs, workload.batch_size
    order = torch.randint(len(workload.targets), size, generator=generator("calibration", "order"))
    train_epoch(
        population,
        TrainingSamples(workload.inputs, workload.targets, prepare=workload.prepare),
        order,
        growth,
        incubation=workload.incubation,
        num_steps=1,
        lr=LEARNING_RATE,
        probes=probes,
    )


def mixed_growth(population: Population, *, every: int, turn: int, isolated: bool = False) -> GrowthStage:
    """Make some modules developing and all others acting.

    Args:
        population: hosts and modules.
        every, turn: modules whose environment and slot add up to ``turn`` modulo ``every`` are developing.
        isolated: keep gradients of the others out of the host.
    """
    present = population.blueprint >= 0
    env, slot = torch.meshgrid(*(torch.arange(size) for size in present.shape), indexing="ij")
    developing = present & ((env + slot) % every == turn)
    acting = present & ~developing
    return GrowthStage(alpha=BLENDED_ALPHA * acting.double(), developing=developing, isolated=acting & isolated)


def validate(workload: Workload, population: Population, growth: GrowthStage, num_samples: int, asked: Tensor) -> None:
    """Run one validation with the contribution of every module.

    Args:
        workload, population, growth: hosts and data to validate, and stages of the modules.
        num_samples: number of samples, from the first of the validation split on.
        asked: ``bool [E]``, hosts that are also measured with only the acting modules, with pairs and with none.
    """
    targets = workload.val_targets[:num_samples]
    valuate(
        population,
        Samples(
            inputs=workload.val_inputs[:num_samples],
            targets=targets,
            weights=torch.ones(population.num_envs, len(targets)),
            prepare=workload.prepare,
        ),
        Questions(
            alpha=growth.alpha,
            developing=growth.developing,
            kept=growth.alpha > 0,
            kept_wanted=asked,
            pairs_due=asked,
            off_wanted=asked,
        ),
    )
