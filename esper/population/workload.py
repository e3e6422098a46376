"""Work that a run asks of its mapping, and the smallest pieces of it: hosts at birth, one training step.

Axis legend: E = environments, S = slots, B = blueprints, N = samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.hosts import SegmentedHost
from esper.population.layout import flatten_parameters
from esper.population.mapping import Mapping
from esper.population.population import Population
from esper.population.training import GrowthStage, train_epoch
from esper.runtime.rng import generator
from esper.tasks.batches import Prepare, as_stored, take_inputs

LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work that a run asks of its mapping.

    Attributes:
        host: prototype; its parameters are neither used nor changed.
        slot_ids: places used as slots, in canonical order.
        compatible: ``bool [S, B]``, blueprints that may germinate.
        num_envs: hosts trained together.
        inputs, targets: training samples ``[N, ...]``, on the device, as they are stored.
        val_inputs, val_targets: validation samples, likewise.
        prepare: makes of inputs what hosts read.
        batch_size: samples of one step of one host.
        steps_per_epoch: steps between two validations.
        incubation: learning signal of developing modules.
        autocast_dtype: what products and convolutions compute in, ``None`` for the samples' own type.
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
    incubation: str
    autocast_dtype: torch.dtype | None = None
    prepare: Prepare = as_stored

    @property
    def device(self) -> torch.device:
        """Where hosts are trained."""
        return self.inputs.device


def bare_population(workload: Workload, mapping: Mapping) -> Population:
    """Hosts at birth, without modules."""
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
    """One training step. Its statistics end on the CPU, so that the device has finished when it returns."""
    size = population.num_envs, workload.batch_size
    order = torch.randint(len(workload.targets), size, generator=generator("calibration", "order"))
    train_epoch(
        population,
        workload.inputs,
        workload.targets,
        order,
        growth,
        incubation=workload.incubation,
        num_steps=1,
        lr=LEARNING_RATE,
        probes=probes,
        take=lambda inputs, index: workload.prepare(take_inputs(inputs, index)),
    )
