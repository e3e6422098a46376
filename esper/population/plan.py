"""Which rows to run through which modules, worked out once per epoch and used for every step of it.

Axis legend: E = environments, S = slots, R = rows. A *row* is one copy of an environment's host with its own alphas:
training runs one row per environment, incubation one per developing module, a counterfactual one per configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from esper.growth.actions import BlendAlgorithm
from esper.population.mapping import Index

FROM_INPUT = -1


class Flow(IntEnum):
    """How gradients pass a seed module in one row."""

    JOINT = 0
    """Through the module into the host and into the module's parameters."""
    ISOLATED = 1
    """Into the module's parameters only: it sees a detached feature."""
    FROZEN = 2
    """Through the module, not into its parameters."""
    STRAIGHT = 3
    """The feature's value is the host's, its gradient also trains the module as if its output stood there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows to run, sorted by the slot they start at.

    Attributes:
        environments: ``int64 [R]``.
        start: ``int64 [R]``, :data:`FROM_INPUT` or the slot whose arriving feature the row begins with.
        alpha: ``[R, S]``; a module at alpha 0 is not run.
        flow: ``int64 [R, S]`` of :class:`Flow`.
    """

    environments: Tensor
    start: Tensor
    alpha: Tensor
    flow: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Where each environment's seed modules are.

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
    """Modules of one blueprint, run together: how many of the running rows, and which rows of the stack."""

    blueprint: int
    flow: Flow
    count: int
    members: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendCall:
    """Rows blended together.

    Attributes:
        algorithm, flow: one for all of them.
        runs: which runs of the running rows they are.
        rows: which active rows they are.
        alpha: ``[len(rows)]``, or the number 1 where all of them are there: ADD then costs nothing.
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
    """What happens at one slot: rows that join there, then modules, then blends.

    Attributes:
        arrivals: environments whose arriving feature starts a row here.
        rows: active rows with a running module, ordered by blueprint, flow and algorithm.
        bodies: module calls, in that order.
        runs: lengths of the runs that share all three. Rows are regrouped by cutting and joining runs, because the
            backward of a gather would fill a whole feature with zeros for each.
        blends: what becomes of the outputs.
    """

    arrivals: Index
    rows: Index
    bodies: tuple[BodyCall, ...]
    runs: tuple[int, ...]
    blends: tuple[BlendCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A forward pass of some rows.

    Attributes:
        hosts: environment of each row.
        counts: rows active in each of the S + 1 sections of the host.
        slots: one plan per slot.
    """

    hosts: Index
    counts: tuple[int, ...]
    slots: tuple[SlotPlan, ...]


def build_plan(rows: Rows, directory: Directory, *, device: torch.device, dtype: torch.dtype) -> Plan:
    """Group rows by what is run at each slot."""
    num_slots = rows.alpha.shape[1]
    hosts = rows.environments.tolist()
    starts = rows.start.tolist()
    counts = [sum(start < slot for start in starts) for slot in range(num_slots + 1)]
    slots = []
    for slot in range(num_slots):
        active, running = counts[slot + 1], counts[slot]
        modules = _running(rows, directory, slot, active)
        runs = [list(run) for _, run in groupby(modules, key=lambda module: module[:3])]
        slots.append(
            SlotPlan(
                arrivals=Index.of(hosts[running:active], device),
                rows=Index.of([module.row for module in modules], device),
                bodies=_body_calls(modules, directory, slot, device),
                runs=tuple(len(run) for run in runs),
                blends=_blend_calls(runs, rows, directory, slot, device, dtype),
            )
        )
    return Plan(hosts=Index.of(hosts, device), counts=tuple(counts), slots=tuple(slots))


class _Running(NamedTuple):
    """One module running in one active row; sorts by what can be run together."""

    blueprint: int
    flow: int
    algorithm: int
    row: int
    environment: int


def _running(rows: Rows, directory: Directory, slot: int, active: int) -> list[_Running]:
    blueprint, algorithm = directory.blueprint[:, slot].tolist(), directory.algorithm[:, slot].tolist()
    columns = rows.environments.tolist(), rows.alpha[:, slot].tolist(), rows.flow[:, slot].tolist()
    return sorted(
        _Running(blueprint[environment], flow, algorithm[environment], row, environment)
        for row, (environment, alpha, flow) in enumerate(islice(zip(*columns, strict=True), active))
        if alpha != 0 and blueprint[environment] >= 0
    )


def _body_calls(modules: list[_Running], directory: Directory, slot: int, device: torch.device) -> tuple[BodyCall, ...]:
    calls = []
    for (blueprint, flow), group in groupby(modules, key=lambda module: module[:2]):
        environments = [module.environment for module in group]
        members = directory.member[environments, slot].tolist()
        calls.append(
            BodyCall(blueprint=blueprint, flow=Flow(flow), count=len(members), members=Index.of(members, device))
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
