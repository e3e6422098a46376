"""One epoch of training for all hosts and their seed modules together.

Axis legend: E = environments, S = slots, B = batch, R = rows of the incubation pass, P = parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.population.forward import Pass, read_logits, run
from esper.population.losses import row_losses
from esper.population.plan import FROM_INPUT, Directory, Flow, Plan, Rows, build_plan
from esper.population.population import Population
from esper.population.probes import PROBE_NAMES, slot_probes
from esper.population.scaling import GradientNorms, Scaling
from esper.population.stack import Stack, adam_step
from esper.runtime.user_code import blame
from esper.tasks.batches import Take, take_inputs, take_targets, told_apart

INCUBATIONS = ("auxiliary", "straight_through")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStage:
    """What training needs to know of the lifecycle, each ``[E, S]``.

    Attributes:
        alpha: present alphas; 0 for a module that the host does not feel yet.
        developing: modules in isolation (GERMINATED or TRAINING), trained by the incubation signal.
        isolated: blended modules whose gradient must not reach the host.
    """

    alpha: Tensor
    developing: Tensor
    isolated: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """What an epoch of training measured.

    Attributes:
        loss: ``[E]`` mean training loss.
        host_norm: ``[E]`` mean gradient norm of the host: infinite if one was not finite, but steps skipped by fp16
            loss scaling do not count; NaN without any other.
        module_norm: ``[E, S]`` the same of each seed module, NaN also where a slot has none.
        skipped_steps: optimizer steps that fp16 loss scaling skipped, over all hosts, modules and gates.
        probes: ``[E, S, F]`` slot probes at the last step, NaN where fp16 loss scaling skipped it; ``None`` when none
            was asked for.
    """

    loss: Tensor
    host_norm: Tensor
    module_norm: Tensor
    skipped_steps: int
    probes: Tensor | None


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The pass of all hosts, and the one of developing modules (``None`` when there is none).

    ``incubated`` names the modules of the second pass, row by row: environments and slots, ``int64 [R]`` each.
    """

    main: Plan
    incubation: Plan | None
    incubated: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Environments that are run together: which rows of everything they are, their plan, their owners."""

    population: Population
    rows: slice
    plan: TrainingPlan
    stacks: list[Stack]

    @property
    def incubated(self) -> tuple[Tensor, Tensor]:
        """Modules of its incubation pass: environments among all and slots, ``int64 [R]`` each."""
        environments, slots = self.plan.incubated
        return self.rows.start + environments, slots


def plan_training(population: Population, growth: GrowthStage, incubation: str) -> TrainingPlan:
    """Rows for one epoch.

    Args:
        population: hosts and modules.
        growth: stages of the modules.
        incubation: ``auxiliary``: a developing module learns from a second pass, from its slot on, with alpha 1 on the
            detached feature, other developing modules off, and everything but itself frozen.
            ``straight_through``: it learns in the main pass, whose values it does not change.
    """
    directory = population.directory()
    environments = torch.arange(population.num_envs)
    alpha, flow = growth.alpha.clone(), torch.where(growth.isolated, int(Flow.ISOLATED), int(Flow.JOINT))
    if incubation == "straight_through":
        alpha[growth.developing] = 1.0
        flow[growth.developing] = int(Flow.STRAIGHT)
    start = torch.full_like(environments, FROM_INPUT)
    main = Rows(environments=environments, start=start, alpha=alpha, flow=flow)
    apart = growth.developing if incubation == "auxiliary" else torch.zeros_like(growth.developing)
    auxiliary = _incubation_rows(growth, apart)
    return TrainingPlan(
        main=_plan(population, main, directory),
        incubation=_plan(population, auxiliary, directory) if apart.any() else None,
        incubated=(auxiliary.environments, auxiliary.start),
    )


def _plan(population: Population, rows: Rows, directory: Directory) -> Plan:
    return build_plan(rows, directory, device=population.device, dtype=population.dtype)


def _incubation_rows(growth: GrowthStage, apart: Tensor) -> Rows:
    """One row per module of ``apart [E, S]``: it stands at alpha 1 on the detached feature, all else is frozen."""
    slots, environments = apart.T.nonzero(as_tuple=True)
    own = torch.arange(len(slots)), slots
    alpha = growth.alpha[environments]
    alpha[own] = 1.0
    flow = torch.full_like(alpha, int(Flow.FROZEN), dtype=torch.long)
    flow[own] = int(Flow.JOINT)
    return Rows(environments=environments, start=slots, alpha=alpha, flow=flow)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step found, nothing changed.

    Attributes:
        loss: ``[E]`` of the hosts.
        incubation_loss: ``[R]`` of the developing modules' own pass.
        gradients: by stack, times the factors of the losses that they come from, if there were any.
        arrived, arrived_gradients: features at the slots and their gradients, empty unless asked for.
    """

    loss: Tensor
    incubation_loss: Tensor
    gradients: list[Tensor]
    arrived: list[Tensor]
    arrived_gradients: list[Tensor]


def step_gradients(
    population: Population,
    plan: TrainingPlan,
    x: Tensor,
    y: Tensor,
    *,
    stacks: list[Stack],
    probe: bool = False,
    factors: tuple[Tensor, Tensor] | None = None,
) -> StepResult:
    """Losses and gradients of one step, nothing changed.

    Args:
        population: hosts and modules.
        plan: rows to run.
        x: ``[E, B, ...]`` inputs.
        y: ``int64 [E, B]`` targets.
        stacks: owners to take gradients for.
        probe: also return features at the slots and their gradients, ``[E, B, ...]``.
        factors: fp16's scales of the hosts' losses ``[E]`` and of incubation's ``[R]``, which ``gradients`` carry.
    """
    mapping, network = population.mapping, population.network
    entry, keep = mapping.pack(population.cast(x)), probe or plan.incubation is not None
    main = run(network, plan.main, population.hosts.values, entry=entry, keep=keep)
    losses = row_losses(read_logits(mapping, main.logits, (*y.shape[1:], population.host.num_classes)), y)
    total = (losses if factors is None else losses * factors[0]).sum()
    auxiliary = losses.new_zeros(0)
    if plan.incubation is not None:
        auxiliary = _incubation_losses(population, plan.incubation, main, y)
        total = total + (auxiliary if factors is None else auxiliary * factors[1]).sum()
    seen = main.arrived if probe else []
    del main, entry  # so that the backward frees features as it goes
    leaves = [stack.values for stack in stacks]
    features = [tensor for arrived in seen for tensor in mapping.tensors(arrived)]
    try:
        found = torch.autograd.grad(total, [*leaves, *features], allow_unused=True)
    except (Exception, SystemExit) as error:  # of any kind: a user's module may have a backward pass of its own
        blame("host.target or plugins: a backward pass", error)
        raise
    gradients = [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip([*leaves, *features], found, strict=True)
    ]
    feature_gradients, arrived_gradients = gradients[len(leaves) :], []
    for arrived in seen:
        count = len(mapping.tensors(arrived))
        gradient = mapping.unpack(mapping.from_tensors(feature_gradients[:count])).to(population.dtype)
        scale = None if factors is None else factors[0].view(-1, *([1] * (gradient.dim() - 1)))
        arrived_gradients.append(gradient if scale is None else gradient / scale)
        feature_gradients = feature_gradients[count:]
    arrived_values = [mapping.unpack(mapping.detach(arrived)).to(population.dtype) for arrived in seen]
    return StepResult(losses.detach(), auxiliary.detach(), gradients[: len(leaves)], arrived_values, arrived_gradients)


def _incubation_losses(population: Population, plan: Plan, main: Pass, y: Tensor) -> Tensor:
    mapping = population.mapping
    arrived = [mapping.detach(features) for features in main.arrived]
    suffix = run(population.network, plan, population.hosts.values.detach(), arrived=arrived, keep=False)
    logits = read_logits(mapping, suffix.logits, (*y.shape[1:], population.host.num_classes))
    return row_losses(logits, y[plan.hosts.tensor])


def train_epoch(
    population: Population,
    inputs: Tensor,
    targets: Tensor,
    order: Tensor,
    growth: GrowthStage,
    *,
    incubation: str,
    num_steps: int,
    lr: float | Tensor,
    max_grad_norm: float = 0.0,
    probes: Sequence[str] = (),
    take: Take = take_inputs,
) -> EpochStats:
    """Train every host and every module for one epoch.

    Args:
        population: hosts and modules, changed in place.
        inputs: ``[N, ...]``, as they are stored.
        targets: ``[N, ...]``, or ``[E, N, ...]`` where hosts are told different ones.
        order: ``int64 [E, num_steps * B]``, each host's own samples.
        growth: stages of the modules.
        incubation: one of :data:`INCUBATIONS`.
        num_steps: minibatches.
        lr: learning rate of hosts and modules, one for all or ``[E]``.
        max_grad_norm: clip per (environment, owner); 0 is off.
        probes: slot probes to measure at the last step.
        take: gathers a batch and makes of it what hosts read.
    """
    parts = plan_parts(population, growth, incubation)
    stacks = population.stacks()
    loss_sum = torch.zeros(population.num_envs, device=population.device, dtype=population.dtype)
    scaling = plan_scaling(population, growth, parts)
    gradient_norms = GradientNorms(num_steps, scaling)
    rates = _rates(stacks, lr)
    measured = None
    for step, batch in enumerate(order.to(population.device, non_blocking=True).chunk(num_steps, dim=1)):
        names = probes if step == num_steps - 1 else ()
        result = take_step(population, parts, inputs, targets, batch, probes=names, scaling=scaling, take=take)
        measured = result.probes
        norms = adam_step(stacks, result.gradients, lr=rates, max_grad_norm=max_grad_norm)
        gradient_norms.add(norms, result.loss, result.incubation_loss)
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
    """Learning rates of the environments ``[E]`` as those of the rows of each stack, ``[R, 1]``."""
    if not isinstance(lr, Tensor):
        return lr
    columns = [lr[stack.environments].unsqueeze(1) for stack in stacks]
    return [column.to(stack.values, non_blocking=True) for column, stack in zip(columns, stacks, strict=True)]


def _read(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rows of numbers on the CPU: one transfer, so that the device is waited for once."""
    return list(torch.split(torch.cat(list(tensors)).cpu(), [len(tensor) for tensor in tensors]))


@dataclass(frozen=True, slots=True)
class JoinedStep:
    """Losses of hosts ``[E]`` and of incubation ``[R]``, gradients by stack, slot probes ``[E, S, F]`` if asked for."""

    loss: Tensor
    incubation_loss: Tensor
    gradients: list[Tensor]
    probes: Tensor | None


def take_step(
    population: Population,
    parts: Sequence[Part],
    inputs: Tensor,
    targets: Tensor,
    batch: Tensor,
    *,
    probes: Sequence[str],
    scaling: Scaling | None = None,
    take: Take = take_inputs,
) -> JoinedStep:
    """Losses and gradients of one step of all hosts, part by part, nothing changed; nothing is read back.

    Args:
        population: hosts and modules.
        parts: what is run at once.
        inputs: ``[N, ...]``, as they are stored.
        targets: ``[N, ...]``, or ``[E, N, ...]`` where hosts are told different ones.
        batch: ``int64 [E, B]``, each host's own samples.
        probes: slot probes to measure.
        scaling: fp16's loss scales.
        take: gathers a batch and makes of it what hosts read.
    """
    results, measured, probe, apart = [], [], bool(probes), told_apart(inputs, targets)
    factors = [None] * len(parts) if scaling is None else scaling.factors([len(part.incubated[0]) for part in parts])
    for part, scales in zip(parts, factors, strict=True):
        own = batch[part.rows]
        x, y = take(inputs, own), take_targets(targets[part.rows] if apart else targets, own, own=apart)
        result = step_gradients(part.population, part.plan, x, y, stacks=part.stacks, probe=probe, factors=scales)
        results.append(result)
        if probe:
            measured.append(slot_probes(result.arrived, result.arrived_gradients, probes))
    gradients = _join_gradients(population, parts, [result.gradients for result in results])
    return JoinedStep(
        loss=torch.cat([result.loss for result in results]),
        incubation_loss=torch.cat([result.incubation_loss for result in results]),
        gradients=gradients if scaling is None else scaling.unscaled(gradients),
        probes=torch.cat(measured) if probe else None,
    )


def plan_parts(population: Population, growth: GrowthStage, incubation: str) -> list[Part]:
    """What is run at once in every step of an epoch; arguments as for :func:`plan_training`."""
    parts, begin = [], 0
    for part in population.parts():
        rows = slice(begin, begin + part.num_envs)
        stage = GrowthStage(
            alpha=growth.alpha[rows], developing=growth.developing[rows], isolated=growth.isolated[rows]
        )
        parts.append(Part(part, rows, plan_training(part, stage, incubation), part.stacks()))
        begin = rows.stop
    return parts


def plan_scaling(population: Population, growth: GrowthStage, parts: Sequence[Part]) -> Scaling | None:
    """Whose loss scale goes where during an epoch; ``None`` but under fp16."""
    if population.scales is None:
        return None
    stacks: list[tuple[list[int], int | None]] = [(population.hosts.environments, None)]
    stacks += [(stack.environments, slot) for (slot, _), stack in population.modules.items()]
    stacks += [(stack.environments, slot) for slot, stack in population.gates.items()]
    environments, slots = (torch.cat(column) for column in zip(*(part.incubated for part in parts), strict=True))
    return Scaling.plan(population.scales, stacks, growth.developing, (environments, slots) if len(slots) else None)


def _join_gradients(population: Population, parts: Sequence[Part], gradients: Sequence[list[Tensor]]) -> list[Tensor]:
    """Gradients of all rows of all stacks, from those of the parts."""
    if len(parts) == 1:
        return gradients[0]
    found = [dict(zip(part.population.owners(), own, strict=True)) for part, own in zip(parts, gradients, strict=True)]
    return [
        torch.cat([found[environment][owner] for environment in stack.environments])
        for owner, stack in population.owners().items()
    ]


def _by_slot(population: Population, norms: list[Tensor]) -> Tensor:
    table = torch.full(population.blueprint.shape, torch.nan, dtype=population.dtype)
    for ((slot, _), stack), norm in zip(population.modules.items(), norms, strict=True):
        table[stack.environments, slot] = norm
    return table


def probe_hosts(population: Population, x: Tensor, y: Tensor, names: Sequence[str] = PROBE_NAMES) -> Tensor:
    """Slot probes of bare hosts on one batch, without training: ``[E, S, F]``.

    Args:
        population: hosts; seed modules are left out.
        x: ``[E, B, ...]``.
        y: ``int64 [E, B]``.
        names: which probes.
    """
    nothing = torch.zeros_like(population.blueprint, dtype=torch.bool)
    growth = GrowthStage(alpha=nothing.double(), developing=nothing, isolated=nothing)
    plan = plan_training(population, growth, "auxiliary")
    scales = population.scales
    factors = None if scales is None else (scales.scale[:-1, 0], scales.scale.new_zeros(0))
    result = step_gradients(population, plan, x, y, stacks=[population.hosts], probe=True, factors=factors)
    return slot_probes(result.arrived, result.arrived_gradients, names).cpu()
