"""One training step of all hosts and their seed modules together: its plan, losses and gradients.

Axis legend: E = environments, S = slots, B = batch, R = rows of the incubation pass, P = parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.growth.stages import Incubation
from esper.population.forward import read_logits, run
from esper.population.losses import row_losses
from esper.population.plan import FROM_INPUT, Flow, Plan, Rows, build_plan
from esper.population.population import Population
from esper.population.probes import PROBE_NAMES, slot_probes
from esper.population.scaling import Scaling
from esper.population.stack import Stack
from esper.runtime.user_code import blame
from esper.tasks.batches import TrainingSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStage:
    """The part of the lifecycle state that training depends on, each ``[E, S]``.

    Attributes:
        alpha: present alphas; 0 for a module that does not yet affect the host.
        developing: modules in isolation (GERMINATED or TRAINING), trained by the incubation signal.
        isolated: blended modules whose gradient must not reach the host.
    """

    alpha: Tensor
    developing: Tensor
    isolated: Tensor


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The forward pass of a training step, whose first rows are the hosts, and then the modules that are incubated.

    ``incubated`` names these modules, row by row: environments and slots, ``int64 [R]`` each.
    """

    rows: Plan
    incubated: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """A group of environments that run together: their row indices, plan and owners of parameters."""

    population: Population
    rows: slice
    plan: TrainingPlan
    stacks: list[Stack]

    @property
    def incubated(self) -> tuple[Tensor, Tensor]:
        """Return the modules that are incubated: environments among all and slots, ``int64 [R]`` each."""
        environments, slots = self.plan.incubated
        return self.rows.start + environments, slots


def plan_training(population: Population, growth: GrowthStage, incubation: Incubation) -> TrainingPlan:
    """Plan the rows of one epoch.

    Args:
        population: hosts and modules.
        growth: stages of the modules.
        incubation: ``auxiliary``: a developing module learns in a row of its own, from its slot on, with alpha 1 on the
            detached feature, other developing modules off, and everything but itself frozen.
            ``straight_through``: it learns in the host's row, whose values it does not change.
    """
    environments = torch.arange(population.num_envs)
    alpha, flow = growth.alpha.clone(), torch.where(growth.isolated, int(Flow.ISOLATED), int(Flow.JOINT))
    if incubation == Incubation.straight_through:
        alpha[growth.developing] = 1.0
        flow[growth.developing] = int(Flow.STRAIGHT_THROUGH)
    start = torch.full_like(environments, FROM_INPUT)
    apart = growth.developing if incubation == Incubation.auxiliary else torch.zeros_like(growth.developing)
    incubated = _incubation_rows(growth, apart)
    rows = Rows.join(Rows(environments=environments, start=start, alpha=alpha, flow=flow), incubated)
    return TrainingPlan(
        rows=build_plan(rows, population.directory(), device=population.device, dtype=population.dtype),
        incubated=(incubated.environments, incubated.start),
    )


def _incubation_rows(growth: GrowthStage, apart: Tensor) -> Rows:
    """Return one row per module of ``apart [E, S]``: it is at alpha 1 on the detached feature, all else is frozen."""
    slots, environments = apart.T.nonzero(as_tuple=True)
    own = torch.arange(len(slots)), slots
    alpha = growth.alpha[environments]
    alpha[own] = 1.0
    flow = torch.full_like(alpha, int(Flow.FROZEN), dtype=torch.long)
    flow[own] = int(Flow.JOINT)
    return Rows(environments=environments, start=slots, alpha=alpha, flow=flow)


@dataclass(frozen=True, slots=True)
class PartGradients:
    """Losses and gradients of one step of a part.

    Attributes:
        loss: ``[E]``, losses of the hosts.
        incubation_loss: ``[R]``, losses of the modules that are incubated.
        gradients: gradients by stack, multiplied by the loss scales if there were any.
        arrived, arrived_gradients: features at the slots and their gradients, empty unless requested.
    """

    loss: Tensor
    incubation_loss: Tensor
    gradients: list[Tensor]
    arrived: list[Tensor]
    arrived_gradients: list[Tensor]


def part_gradients(
    population: Population,
    plan: TrainingPlan,
    x: Tensor,
    y: Tensor,
    *,
    stacks: list[Stack],
    probe: bool = False,
    factors: tuple[Tensor, Tensor] | None = None,
) -> PartGradients:
    """Compute losses and gradients of one step without changing anything.

    Args:
        population: hosts and modules.
        plan: rows to run.
        x: ``[E, B, ...]`` inputs.
        y: ``int64 [E, B]`` targets.
        stacks: owners whose gradients to compute.
        probe: also return features at the slots and their gradients, ``[E, B, ...]``.
        factors: fp16's scales of the hosts' losses ``[E]`` and of incubation's ``[R]``, which ``gradients`` carry.
    """
    mapping, num_envs = population.mapping, population.num_envs
    entry = mapping.pack(population.cast(x))
    result = run(population.network, plan.rows, population.hosts.values, entry, keep=probe)
    logits = read_logits(mapping, result.logits, (*y.shape[1:], population.host.num_classes))
    losses = row_losses(logits, y[plan.rows.hosts.tensor] if plan.rows.suffixes else y)
    total = (losses if factors is None else losses * torch.cat(factors)).sum()
    seen = result.arrived
    del result, logits, entry  # so that the backward frees features as it goes
    leaves = [stack.values for stack in stacks]
    features = [tensor for arrived in seen for tensor in mapping.tensors(arrived)]
    sources = [*leaves, *(tensor for tensor in features if tensor.requires_grad)]  # not those of a row without weights
    try:
        found = iter(torch.autograd.grad(total, sources, allow_unused=True))
    except (Exception, SystemExit) as error:  # of any kind: a user's module may have a backward pass of its own
        blame("host.target or plugins: a backward pass", error)
        raise
    gradients = []
    for source in [*leaves, *features]:
        gradient = next(found) if source.requires_grad else None
        gradients.append(torch.zeros_like(source) if gradient is None else gradient)
    feature_gradients, arrived_values, arrived_gradients = gradients[len(leaves) :], [], []
    for arrived, rows in zip(seen, plan.rows.counts, strict=False):
        count = len(mapping.tensors(arrived))
        pair = mapping.detach(arrived), mapping.from_tensors(feature_gradients[:count])
        own = [each if rows == num_envs else mapping.split(each, [num_envs, rows - num_envs])[0] for each in pair]
        value, gradient = (mapping.unpack(each).to(population.dtype) for each in own)
        scale = None if factors is None else factors[0].view(-1, *([1] * (gradient.dim() - 1)))
        arrived_values.append(value)
        arrived_gradients.append(gradient if scale is None else gradient / scale)
        feature_gradients = feature_gradients[count:]
    loss, incubation_loss = torch.split(losses.detach(), [num_envs, len(plan.rows.suffixes)])
    return PartGradients(loss, incubation_loss, gradients[: len(leaves)], arrived_values, arrived_gradients)


@dataclass(frozen=True, slots=True)
class StepGradients:
    """Losses of hosts ``[E]`` and of incubation ``[R]``, gradients by stack, and slot probes ``[E, S, F]`` if
    requested.
    """

    loss: Tensor
    incubation_loss: Tensor
    gradients: list[Tensor]
    probes: Tensor | None


def step_gradients(
    population: Population,
    parts: Sequence[Part],
    samples: TrainingSamples,
    batch: Tensor,
    *,
    probes: Sequence[str],
    scaling: Scaling | None = None,
) -> StepGradients:
    """Compute losses and gradients of one step of all hosts, part by part, without changing anything or reading from
    the device.

    Args:
        population: hosts and modules.
        parts: groups of environments that run together.
        samples: training samples of all hosts.
        batch: ``int64 [E, B]``, each host's own samples.
        probes: slot probes to measure.
        scaling: fp16's loss scales.
    """
    results, measured, probe = [], [], bool(probes)
    factors = [None] * len(parts) if scaling is None else scaling.factors([len(part.incubated[0]) for part in parts])
    for part, scales in zip(parts, factors, strict=True):
        x, y = samples.batch(batch[part.rows], part.rows)
        result = part_gradients(part.population, part.plan, x, y, stacks=part.stacks, probe=probe, factors=scales)
        results.append(result)
        if probe:
            measured.append(slot_probes(result.arrived, result.arrived_gradients, probes))
    gradients = _join_gradients(population, parts, [result.gradients for result in results])
    return StepGradients(
        loss=torch.cat([result.loss for result in results]),
        incubation_loss=torch.cat([result.incubation_loss for result in results]),
        gradients=gradients if scaling is None else scaling.unscaled(gradients),
        probes=torch.cat(measured) if probe else None,
    )


def plan_parts(population: Population, growth: GrowthStage, incubation: Incubation) -> list[Part]:
    """Divide an epoch's work into groups that run together; arguments as for :func:`plan_training`."""
    parts, begin = [], 0
    for part in population.parts():
        rows = slice(begin, begin + part.num_envs)
        stage = GrowthStage(
            alpha=growth.alpha[rows], developing=growth.developing[rows], isolated=growth.isolated[rows]
        )
        parts.append(Part(part, rows, plan_training(part, stage, incubation), part.stacks()))
        begin = rows.stop
    return parts


def owners_by_slot(population: Population) -> list[tuple[list[int], int | None]]:
    """Return the environments of the rows of each stack, and the slot that it belongs to (``None`` for hosts)."""
    owners: list[tuple[list[int], int | None]] = [(population.hosts.environments, None)]
    owners += [(stack.environments, slot) for (slot, _), stack in population.modules.items()]
    return owners + [(stack.environments, slot) for slot, stack in population.gates.items()]


def plan_scaling(population: Population, growth: GrowthStage, parts: Sequence[Part]) -> Scaling | None:
    """Assign loss scales for an epoch; ``None`` except under fp16."""
    if population.scales is None:
        return None
    environments, slots = (torch.cat(column) for column in zip(*(part.incubated for part in parts), strict=True))
    incubated = (environments, slots) if len(slots) else None
    return Scaling.plan(population.scales, owners_by_slot(population), growth.developing, incubated)


def _join_gradients(population: Population, parts: Sequence[Part], gradients: Sequence[list[Tensor]]) -> list[Tensor]:
    """Join the gradients of the parts to those of all rows of all stacks."""
    if len(parts) == 1:
        return gradients[0]
    found = [dict(zip(part.population.owners(), own, strict=True)) for part, own in zip(parts, gradients, strict=True)]
    return [
        torch.cat([found[environment][owner] for environment in stack.environments])
        for owner, stack in population.owners().items()
    ]


def probe_hosts(population: Population, x: Tensor, y: Tensor, names: Sequence[str] = PROBE_NAMES) -> Tensor:
    """Measure slot probes of bare hosts on one batch, without training: ``[E, S, F]``.

    Args:
        population: hosts; seed modules are ignored.
        x: ``[E, B, ...]``.
        y: ``int64 [E, B]``.
        names: probes to compute.
    """
    nothing = torch.zeros_like(population.blueprint, dtype=torch.bool)
    growth = GrowthStage(alpha=nothing.double(), developing=nothing, isolated=nothing)
    plan = plan_training(population, growth, Incubation.auxiliary)
    scales = population.scales
    factors = None if scales is None else (scales.scale[:-1, 0], scales.scale.new_zeros(0))
    result = part_gradients(population, plan, x, y, stacks=[population.hosts], probe=True, factors=factors)
    return slot_probes(result.arrived, result.arrived_gradients, names).cpu()
