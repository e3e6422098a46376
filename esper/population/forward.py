"""Forward passes of planned rows through stacked hosts and their seed modules.

Axis legend: E = environments, S = slots, R = rows, B = batch, P = parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.growth.actions import BlendAlgorithm
from esper.population.layout import Columns
from esper.population.mapping import Features, Index, Mapping, Program, is_all
from esper.population.plan import BlendCall, BodyCall, Flow, Plan, SlotPlan
from esper.population.stack import Stack
from esper.runtime.precision import autocast
from esper.runtime.user_code import UsersCodeError, of_the_user

USERS_HOST = "host.target: the module"
"""Name of a user's host in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """All inputs of a forward pass except features: mapping, sections, parameters and modules.

    Attributes:
        mapping: implementation that runs many copies of a module as one program.
        sections: the parts of the host between its slots.
        columns: position of the sections' parameters in a flat host row.
        modules: stacks of seed modules by (slot, blueprint).
        gates: stacks of gates by slot.
        autocast_dtype: type of products and convolutions, ``None`` for the parameters' own type.
    """

    mapping: Mapping
    sections: Sequence[Program]
    columns: Columns
    modules: dict[tuple[int, int], Stack]
    gates: dict[int, Stack]
    autocast_dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """Result of a forward pass: the last features (logits), and the features at each slot, before its modules and
    before the rows that start there.
    """

    logits: Features
    arrived: list[Features]


def run(network: Network, plan: Plan, host_values: Tensor, entry: Features, *, keep: bool = False) -> Pass:
    """Run the rows of a plan.

    Args:
        network: parameters and modules.
        plan: rows and the modules that each runs through.
        host_values: ``[E, P]`` host parameters, which only rows that start from the input train.
        entry: input features of all environments.
        keep: return the features at the slots, which then cannot be freed during the pass or its backward.

    Returns:
        Logits of all rows in plan order, and the features at each slot (none without ``keep``).
    """
    mapping, num_envs = network.mapping, len(host_values)
    pieces = network.columns.split(host_values)
    frozen = network.columns.split(host_values.detach().index_select(0, plan.suffixes.tensor)) if plan.suffixes else []
    features, seen = entry, []
    with autocast(host_values.device, network.autocast_dtype):
        for index, section in enumerate(network.sections):
            others = plan.counts[index] - num_envs
            rest = frozen[index][:others] if others else None
            features = _run_section(mapping, section, pieces[index], features, rest)
            if index < len(plan.slots):
                slot = plan.slots[index]
                if keep:
                    seen.append(features)
                if slot.arrivals:
                    features = mapping.join([features, mapping.detach(mapping.select(features, slot.arrivals))])
                features = _grow(network, index, slot, features)
    return Pass(features, seen)


def _run_section(mapping: Mapping, section: Program, values: Tensor, x: Features, frozen: Tensor | None) -> Features:
    parts = (len(values),) if frozen is None else (len(values), len(frozen))
    if section.users is None:
        return mapping.call(section, values, x, frozen, parts)
    with of_the_user(section.users):
        result = mapping.call(section, values, x, frozen, parts)
    wrong = [part for part in mapping.tensors(result) if not isinstance(part, Tensor)]
    if wrong:
        raise UsersCodeError(f"{section.users}: it must pass on tensors, not a {type(wrong[0]).__name__}")
    return result


def read_logits(mapping: Mapping, logits: Features, wanted: Sequence[int]) -> Tensor:
    """Return the logits ``[R, B, ..., K]`` of a pass.

    Args:
        mapping, logits: mapping and result of the pass.
        wanted: expected shape of one row, ``[B, ..., K]``.

    Raises:
        UsersCodeError: they have another shape, which only a user's host can produce.
    """
    found = mapping.unpack(logits)
    if tuple(found.shape[1:]) != tuple(wanted):
        raise UsersCodeError(f"{USERS_HOST}: it must return logits {list(wanted)}, got {list(found.shape[1:])}")
    return found


def _grow(network: Network, slot: int, plan: SlotPlan, features: Features) -> Features:
    """Apply the seed modules of one slot."""
    if not plan.bodies:
        return features
    mapping = network.mapping
    running = mapping.split(mapping.select(features, plan.rows), [body.count for body in plan.bodies])
    inputs = [mapping.detach(x) if body.detached else x for body, x in zip(plan.bodies, running, strict=True)]
    outputs = [_run_body(network, slot, body, x) for body, x in zip(plan.bodies, inputs, strict=True)]
    x_runs = mapping.split(mapping.join(inputs), plan.runs)
    y_runs = mapping.split(mapping.join(outputs), plan.runs)
    replaced: list[tuple[Index, Features]] = []
    for blend in plan.blends:
        x = mapping.join([x_runs[run] for run in blend.runs])
        y = mapping.join([y_runs[run] for run in blend.runs])
        standing = mapping.blend(x, y, blend.alpha, blend.algorithm, _gate(network, slot, blend, x))
        if blend.flow == Flow.STRAIGHT_THROUGH:
            features = mapping.straight_through(features, blend.rows, standing)
        elif blend.flow == Flow.ISOLATED:
            features = mapping.add(features, blend.rows, standing, x)
        else:
            replaced.append((blend.rows, standing))
    if replaced:
        rows = Index.join([rows for rows, _ in replaced])
        features = mapping.replace(features, rows, mapping.join([standing for _, standing in replaced]))
    return features


def _run_body(network: Network, slot: int, body: BodyCall, x: Features) -> Features:
    stack = network.modules[slot, body.blueprint]
    rows = [_rows(stack.values, body.members), _rows(stack.values.detach(), body.frozen)]
    values, frozen = (rows[0], rows[1] if body.frozen else None) if body.members else (rows[1], None)
    mapping, users = network.mapping, stack.program.users
    if users is None:
        return mapping.call(stack.program, values, x, frozen, body.parts)
    with of_the_user(users):
        result = mapping.call(stack.program, values, x, frozen, body.parts)
    for given, got in zip(mapping.tensors(x), mapping.tensors(result), strict=True):
        if not isinstance(got, Tensor) or got.shape != given.shape:
            shown = list(got.shape) if isinstance(got, Tensor) else f"a {type(got).__name__}"
            raise UsersCodeError(f"{users}: it must return {list(given.shape)}, the shape of its input, got {shown}")
    return result


def _rows(values: Tensor, rows: Index) -> Tensor:
    return values if is_all(rows, len(values)) else values.index_select(0, rows.tensor)


def _gate(network: Network, slot: int, blend: BlendCall, x: Features) -> Features | None:
    if blend.algorithm != BlendAlgorithm.GATE:
        return None
    stack = network.gates[slot]
    values = stack.values.detach() if blend.flow == Flow.FROZEN else stack.values
    return network.mapping.call(stack.program, values.index_select(0, blend.gates.tensor), x)
