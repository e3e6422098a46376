"""One epoch of training for all hosts and their seed modules together.

Axis legend: E = environments, S = slots, B = batch, R = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.growth.stages import Incubation
from esper.population.population import Population
from esper.population.scaling import GradientNorms, Scaling
from esper.population.stack import Stack, adam_step
from esper.population.training import GrowthStage, Part, owners_by_slot, plan_parts, plan_scaling, step_gradients
from esper.tasks.batches import TrainingSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """Measurements of an epoch of training.

    Attributes:
        loss: ``[E]`` mean training loss.
        host_norm: ``[E]`` mean gradient norm of the host: infinite if one was not finite, but steps skipped by fp16
            loss scaling do not count; NaN without any other.
        module_norm: ``[E, S]`` the same of each seed module, NaN also where a slot has none.
        skipped_steps: optimizer steps that fp16 loss scaling skipped, over all hosts, modules and gates.
        probes: ``[E, S, F]`` slot probes at the last step, NaN where fp16 loss scaling skipped it; ``None`` if not
            requested.
    """

    loss: Tensor
    host_norm: Tensor
    module_norm: Tensor
    skipped_steps: int
    probes: Tensor | None


@dataclass(frozen=True, slots=True)
class Turn:
    """Plan shared by the steps of one kind: parts, fp16's loss scales, and the rows ``bool [R]`` of each stack that
    rest, ``None`` for none.
    """

    parts: list[Part]
    scaling: Scaling | None
    resting: list[Tensor] | None

    @classmethod
    def plan(cls, population: Population, growth: GrowthStage, incubation: Incubation) -> Turn:
        """Plan the steps in which developing modules learn."""
        parts = plan_parts(population, growth, incubation)
        return cls(parts, plan_scaling(population, growth, parts), None)

    def without_incubation(self, population: Population, growth: GrowthStage) -> Turn:
        """Plan the steps in which developing modules neither run nor learn."""
        if not growth.developing.any():
            return self
        parts = plan_parts(
            population, replace(growth, developing=torch.zeros_like(growth.developing)), Incubation.auxiliary
        )
        resting = [
            torch.zeros(len(environments)).bool() if slot is None else growth.developing[environments, slot]
            for environments, slot in owners_by_slot(population)
        ]
        return Turn(
            parts,
            None if self.scaling is None else self.scaling.without_incubation(),
            [rows.to(population.device, non_blocking=True) for rows in resting],
        )


def train_epoch(
    population: Population,
    samples: TrainingSamples,
    order: Tensor,
    growth: GrowthStage,
    *,
    incubation: Incubation,
    incubate_every: int = 1,
    num_steps: int,
    lr: float | Tensor,
    max_grad_norm: float = 0.0,
    probes: Sequence[str] = (),
) -> EpochStats:
    """Train every host and every module for one epoch.

    Args:
        population: hosts and modules, changed in place.
        samples: training samples of all hosts.
        order: ``int64 [E, num_steps * B]``, each host's own samples.
        growth: stages of the modules.
        incubation: training method of developing modules; see :func:`plan_training`.
        incubate_every: steps from one in which developing modules learn to the next, from the first one on; they rest
            in the others.
        num_steps: minibatches.
        lr: learning rate of hosts and modules, one for all or ``[E]``.
        max_grad_norm: clip per (environment, owner); 0 is off.
        probes: slot probes to measure at the last step.
    """
    learning = Turn.plan(population, growth, incubation)
    resting = learning.without_incubation(population, growth) if incubate_every > 1 else learning
    stacks = population.stacks()
    loss_sum = torch.zeros(population.num_envs, device=population.device, dtype=population.dtype)
    scaling = learning.scaling
    gradient_norms = GradientNorms(num_steps, scaling)
    rates = _rates(stacks, lr)
    measured = None
    for step, batch in enumerate(order.to(population.device, non_blocking=True).chunk(num_steps, dim=1)):
        names = probes if step == num_steps - 1 else ()
        turn = resting if step % incubate_every else learning
        result = step_gradients(population, turn.parts, samples, batch, probes=names, scaling=turn.scaling)
        measured = result.probes
        norms = adam_step(stacks, result.gradients, lr=rates, max_grad_norm=max_grad_norm, resting=turn.resting)
        gradient_norms.add(norms, result.loss, result.incubation_loss, turn.resting)
        loss_sum += result.loss
    if measured is not None and scaling is not None:
        measured = measured.masked_fill(gradient_norms.last_skipped[0][:, None, None], torch.nan)
    loss, skipped, *means = _read([loss_sum / num_steps, gradient_norms.num_skipped(), *gradient_norms.means()])
    return EpochStats(
        loss=loss,
        host_norm=means[0],
        module_norm=_by_slot(population, means[1 : 1 + len(population.modules)]),
        skipped_steps=int(skipped),
        probes=None if measured is None else measured.cpu(),
    )


def _rates(stacks: Sequence[Stack], lr: float | Tensor) -> float | list[Tensor]:
    """Expand the learning rates of the environments ``[E]`` to the rows of each stack, ``[R, 1]``."""
    if not isinstance(lr, Tensor):
        return lr
    columns = [lr[stack.environments].unsqueeze(1) for stack in stacks]
    return [column.to(stack.values, non_blocking=True) for column, stack in zip(columns, stacks, strict=True)]


def _read(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy rows of numbers to the CPU in one transfer, to synchronise with the device only once."""
    return list(torch.split(torch.cat(list(tensors)).cpu(), [len(tensor) for tensor in tensors]))


def _by_slot(population: Population, norms: list[Tensor]) -> Tensor:
    table = torch.full(population.blueprint.shape, torch.nan, dtype=population.dtype)
    for ((slot, _), stack), norm in zip(population.modules.items(), norms, strict=True):
        table[stack.environments, slot] = norm
    return table
