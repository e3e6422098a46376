"""Plan of a pass: the rows and the modules that each runs through, computed once per epoch and used for every step.

Axis legend: E = environments, S = slots, R = rows. A *row* is one copy of an environment's host with its own alphas:
training runs one row per environment, incubation one per developing module, a counterfactual one per configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from esper.growth.actions import BlendAlgorithm
from esper.population.mapping import Index

FROM_INPUT = -1


class Flow(IntEnum):
    """Path of gradients through a seed module in one row."""

    JOINT = 0
    """Through the module into the host and into the module's parameters."""
    FROZEN = 1
    """Through the module, not into its parameters."""
    ISOLATED = 2
    """Into the module's parameters only: the module sees a detached feature."""
    STRAIGHT_THROUGH = 3
    """The feature keeps the host's value; its gradient also trains the module as if its output were used."""


DETACHED = (Flow.ISOLATED, Flow.STRAIGHT_THROUGH)
"""Paths on which the module sees a detached feature; no module of these runs together with one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows to run, sorted by the slot that they start at: first one per environment, in order, that starts from the
    input.

    Attributes:
        environments: ``int64 [R]``.
        start: ``int64 [R]``, :data:`FROM_INPUT` or the slot whose feature the row starts with.
        alpha: ``[R, S]``; a module at alpha 0 is not run.
        flow: ``int64 [R, S]`` of :class:`Flow`.
    """

    environments: Tensor
    start: Tensor
    alpha: Tensor
    flow: Tensor

    @classmethod
    def join(cls, first: Rows, then: Rows) -> Rows:
        """Concatenate the rows that start from the input and those that start at slots."""
        parts = [(getattr(first, each.name), getattr(then, each.name)) for each in fields(cls)]
        return cls(**{each.name: torch.cat(part) for each, part in zip(fields(cls), parts, strict=True)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Position of each environment's seed modules in the stacks.

    Attributes:
        blueprint: ``int64 [E, S]``, -1 for none.
        algorithm: ``int64 [E, S]`` of :class:`BlendAlgorithm`.
        member: ``int64 [E, S]``, row in the stack of (slot, blueprint).
        gate: ``int64 [E, S]``, row in the slot's stack of gates.
    """

    blueprint: Tensor
    algorithm: Tensor
    member: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyCall:
    """Modules of one blueprint that run together.

    Attributes:
        blueprint: blueprint of all.
        detached: true if they see detached features.
        members, frozen: rows in the stack of those whose parameters are trained, and of those that follow, whose
            parameters are not.
        parts: numbers of modules that share a flow and run in rows from the input, or in rows from a slot.
    """

    blueprint: int
    detached: bool
    members: Index
    frozen: Index
    parts: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of modules."""
        return len(self.members) + len(self.frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendCall:
    """Rows that are blended together.

    Attributes:
        algorithm, flow: blend algorithm and path of gradients, the same for all these rows.
        runs: their runs among the running rows.
        rows: their indices among the active rows.
        alpha: ``[len(rows)]``, or the number 1 if all are at alpha 1, for which ADD costs nothing.
        gates: their rows in the slot's stack of gates, for GATE.
    """

    algorithm: BlendAlgorithm
    flow: Flow
    runs: tuple[int, ...]
    rows: Index
    alpha: Tensor | float
    gates: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """Plan for one slot: rows that join there, then modules, then blends.

    Attributes:
        arrivals: environments whose feature at this slot starts a row, where a graph begins.
        rows: active rows with a running module, ordered by blueprint, flow, start and algorithm.
        bodies: module calls, in that order.
        runs: lengths of the runs that share all four. Rows are regrouped by dividing and joining runs, because the
            backward of a gather would fill a whole feature with zeros for each.
        blends: blends of the outputs.
    """

    arrivals: Index
    rows: Index
    bodies: tuple[BodyCall, ...]
    runs: tuple[int, ...]
    blends: tuple[BlendCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of a forward pass.

    Attributes:
        hosts: environment of each row.
        suffixes: environments of the rows that start at a slot, which follow those of all environments. They do not
            train the host.
        counts: number of active rows in each of the S + 1 sections of the host.
        slots: one plan per slot.
    """

    hosts: Index
    suffixes: Index
    counts: tuple[int, ...]
    slots: tuple[SlotPlan, ...]


def build_plan(rows: Rows, directory: Directory, *, device: torch.device, dtype: torch.dtype) -> Plan:
    """Group rows by the modules that run at each slot."""
    num_slots = rows.alpha.shape[1]
    hosts = rows.environments.tolist()
    starts = rows.start.tolist()
    counts = [sum(start < slot for start in starts) for slot in range(num_slots + 1)]
    slots = []
    for slot in range(num_slots):
        active, running = counts[slot + 1], counts[slot]
        modules = _running(rows, directory, slot, active, counts[0])
        runs = [list(run) for _, run in groupby(modules, key=lambda module: module[:4])]
        slots.append(
            SlotPlan(
                arrivals=Index.of(hosts[running:active], device),
                rows=Index.of([module.row for module in modules], device),
                bodies=_body_calls(modules, directory, slot, device),
                runs=tuple(len(run) for run in runs),
                blends=_blend_calls(runs, rows, directory, slot, device, dtype),
            )
        )
    return Plan(
        hosts=Index.of(hosts, device),
        suffixes=Index.of(hosts[counts[0] :], device),
        counts=tuple(counts),
        slots=tuple(slots),
    )


class _Running(NamedTuple):
    """One module running in one active row; sorts modules that can run together next to each other."""

    blueprint: int
    flow: int
    is_suffix: bool
    algorithm: int
    row: int
    environment: int


def _running(rows: Rows, directory: Directory, slot: int, active: int, num_envs: int) -> list[_Running]:
    blueprint, algorithm = directory.blueprint[:, slot].tolist(), directory.algorithm[:, slot].tolist()
    columns = rows.environments.tolist(), rows.alpha[:, slot].tolist(), rows.flow[:, slot].tolist()
    return sorted(
        _Running(blueprint[environment], flow, row >= num_envs, algorithm[environment], row, environment)
        for row, (environment, alpha, flow) in enumerate(islice(zip(*columns, strict=True), active))
        if alpha != 0 and blueprint[environment] >= 0
    )


def _body_calls(modules: list[_Running], directory: Directory, slot: int, device: torch.device) -> tuple[BodyCall, ...]:
    calls = []
    for (blueprint, detached), group in groupby(modules, key=lambda each: (each.blueprint, each.flow in DETACHED)):
        together = list(group)
        members = directory.member[[module.environment for module in together], slot].tolist()
        trained = sum(module.flow != Flow.FROZEN for module in together)
        calls.append(
            BodyCall(
                blueprint=blueprint,
                detached=detached,
                members=Index.of(members[:trained], device),
                frozen=Index.of(members[trained:], device),
                parts=tuple(len(list(part)) for _, part in groupby(together, key=lambda each: each[:3])),
            )
        )
    return tuple(calls)


def _blend_calls(
    runs: list[list[_Running]],
    rows: Rows,
    directory: Directory,
    slot: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[BlendCall, ...]:
    groups: dict[tuple[int, int], list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault((run[0].algorithm, run[0].flow), []).append(number)
    calls = []
    for (algorithm, flow), numbers in groups.items():
        modules = [module for number in numbers for module in runs[number]]
        blended = [module.row for module in modules]
        alpha = rows.alpha[blended, slot]
        gated = [module.environment for module in modules] if algorithm == BlendAlgorithm.GATE else []
        calls.append(
            BlendCall(
                algorithm=BlendAlgorithm(algorithm),
                flow=Flow(flow),
                runs=tuple(numbers),
                rows=Index.of(blended, device),
                alpha=1.0 if bool((alpha == 1.0).all()) else alpha.to(dtype).to(device, non_blocking=True),
                gates=Index.of(directory.gate[gated, slot].tolist(), device),
            )
        )
    return tuple(calls)
