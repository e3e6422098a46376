"""Which rows to run through which modules, worked out once per epoch and used for every step of it.

Axis legend: E = environments, S = slots, R = rows. A *row* is one copy of an environment's host with its own alphas:
training runs one row per environment, incubation one per developing module, a counterfactual one per configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from esper.actions import BlendAlgorithm
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
    """Modules of one blueprint, run together: which of the active rows, with which rows of the stack."""

    blueprint: int
    flow: Flow
    rows: Index
    members: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendCall:
    """Rows blended by one algorithm; ``picks`` are their places among the outputs of the body calls."""

    algorithm: BlendAlgorithm
    flow: Flow
    rows: Index
    picks: Index
    alpha: Tensor
    gates: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What happens at one slot: rows that join there, then modules, then blends."""

    arrivals: Index
    bodies: tuple[BodyCall, ...]
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
        slots.append(
            SlotPlan(
                arrivals=Index.of(hosts[running:active], device),
                bodies=_body_calls(rows, directory, slot, active, device),
                blends=_blend_calls(rows, directory, slot, active, device, dtype),
            )
        )
    return Plan(hosts=Index.of(hosts, device), counts=tuple(counts), slots=tuple(slots))


def _ordered(rows: Rows, directory: Directory, slot: int, active: int) -> list[tuple[int, int, int, int]]:
    """Active rows with a module running at the slot as (blueprint, flow, row, environment), grouped."""
    environments = rows.environments[:active]
    blueprints = directory.blueprint[environments, slot]
    running = ((rows.alpha[:active, slot] != 0) & (blueprints >= 0)).nonzero().squeeze(1)
    return sorted(
        zip(
            blueprints[running].tolist(),
            rows.flow[running, slot].tolist(),
            running.tolist(),
            environments[running].tolist(),
            strict=True,
        )
    )


def _body_calls(
    rows: Rows, directory: Directory, slot: int, active: int, device: torch.device
) -> tuple[BodyCall, ...]:
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for blueprint, flow, row, environment in _ordered(rows, directory, slot, active):
        groups.setdefault((blueprint, flow), []).append((row, environment))
    return tuple(
        BodyCall(
            blueprint=blueprint,
            flow=Flow(flow),
            rows=Index.of([row for row, _ in members], device),
            members=Index.of(directory.member[[environment for _, environment in members], slot].tolist(), device),
        )
        for (blueprint, flow), members in groups.items()
    )


def _blend_calls(
    rows: Rows, directory: Directory, slot: int, active: int, device: torch.device, dtype: torch.dtype
) -> tuple[BlendCall, ...]:
    groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for pick, (_, flow, row, environment) in enumerate(_ordered(rows, directory, slot, active)):
        algorithm = int(directory.algorithm[environment, slot])
        groups.setdefault((algorithm, flow), []).append((pick, row, environment))
    calls = []
    for (algorithm, flow), members in groups.items():
        picks, blended, environments = (list(column) for column in zip(*members, strict=True))
        gates = directory.gate[environments, slot].tolist() if algorithm == BlendAlgorithm.GATE else []
        calls.append(
            BlendCall(
                algorithm=BlendAlgorithm(algorithm),
                flow=Flow(flow),
                rows=Index.of(blended, device),
                picks=Index.of(picks, device),
                alpha=rows.alpha[blended, slot].to(device=device, dtype=dtype),
                gates=Index.of(gates, device),
            )
        )
    return tuple(calls)

