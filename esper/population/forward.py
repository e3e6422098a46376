"""Running planned rows through stacked hosts and their seed modules.

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
    """All that a forward pass reads.

    Attributes:
        mapping: how copies are run.
        sections: the parts of the host between its slots.
        columns: where their parameters are in a flat host row.
        modules: stacks of seed modules by (slot, blueprint).
        gates: stacks of gates by slot.
        autocast_dtype: what products and convolutions compute in, ``None`` for the parameters' own type.
    """

    mapping: Mapping
    sections: Sequence[Program]
    columns: Columns
    modules: dict[tuple[int, int], Stack]
    gates: dict[int, Stack]
    autocast_dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """Result of a forward pass: the last features (logits) and what arrived at each slot, before its modules."""

    logits: Features
    arrived: list[Features]


def run(
    network: Network,
    plan: Plan,
    host_values: Tensor,
    entry: Features | None = None,
    arrived: Sequence[Features] | None = None,
    keep: bool = True,
) -> Pass:
    """Run the rows of a plan.

    Args:
        network: what to run.
        plan: which rows, through which modules.
        host_values: ``[E, P]`` host parameters (detached where rows must not train hosts).
        entry: input features of the rows that start from the input.
        arrived: features at each slot from an earlier pass of all environments, for rows that start at a slot.
        keep: return what arrived at the slots. Features that are kept can't be freed as the pass, or its backward,
            goes on.

    Returns:
        Logits of all rows in plan order, and the features that arrived at each slot (none without ``keep``).
    """
    mapping = network.mapping
    values = host_values
    if not is_all(plan.hosts, host_values.shape[0]):
        values = host_values.index_select(0, plan.hosts.tensor)
    pieces = network.columns.split(values)
    features, seen = entry, []
    with autocast(host_values.device, network.autocast_dtype):
        for index, section in enumerate(network.sections):
            count = plan.counts[index]
            if count:
                piece = pieces[index] if count == len(values) else pieces[index][:count]
                features = _run_section(mapping, section, piece, features)
            if index < len(plan.slots):
                features = _join_arrivals(mapping, plan.slots[index], features if count else None, arrived, index)
                if keep:
                    seen.append(features)
                features = _grow(network, index, plan.slots[index], features)
    return Pass(features, seen)


def _run_section(mapping: Mapping, section: Program, values: Tensor, x: Features) -> Features:
    if section.users is None:
        return mapping.call(section, values, x)
    with of_the_user(section.users):
        result = mapping.call(section, values, x)
    wrong = [part for part in mapping.tensors(result) if not isinstance(part, Tensor)]
    if wrong:
        raise UsersCodeError(f"{section.users}: it must pass on tensors, not a {type(wrong[0]).__name__}")
    return result


def read_logits(mapping: Mapping, logits: Features, wanted: Sequence[int]) -> Tensor:
    """Logits ``[R, B, ..., K]`` of a pass.

    Args:
        mapping, logits: of the pass.
        wanted: shape of a row's, ``[B, ..., K]``.

    Raises:
        UsersCodeError: they are of another shape, as only a user's host can have them.
    """
    found = mapping.unpack(logits)
    if tuple(found.shape[1:]) != tuple(wanted):
        raise UsersCodeError(f"{USERS_HOST}: it must return logits {list(wanted)}, got {list(found.shape[1:])}")
    return found


def _join_arrivals(
    mapping: Mapping,
    plan: SlotPlan,
    features: Features | None,
    arrived: Sequence[Features] | None,
    slot: int,
) -> Features | None:
    if not len(plan.arrivals):
        return features
    assert arrived is not None, "rows that start at a slot need the features that arrived there"
    joining = mapping.select(arrived[slot], plan.arrivals)
    return joining if features is None else mapping.join([features, joining])


def _grow(network: Network, slot: int, plan: SlotPlan, features: Features | None) -> Features | None:
    """Apply the seed modules of one slot."""
    if not plan.bodies:
        return features
    mapping = network.mapping
    running = mapping.split(mapping.select(features, plan.rows), [body.count for body in plan.bodies])
    inputs = [
        mapping.detach(x) if body.flow in (Flow.ISOLATED, Flow.STRAIGHT) else x
        for body, x in zip(plan.bodies, running, strict=True)
    ]
    outputs = [_run_body(network, slot, body, x) for body, x in zip(plan.bodies, inputs, strict=True)]
    x_runs = mapping.split(mapping.join(inputs), plan.runs)
    y_runs = mapping.split(mapping.join(outputs), plan.runs)
    replaced: list[tuple[Index, Features]] = []
    for blend in plan.blends:
        x = mapping.join([x_runs[run] for run in blend.runs])
        y = mapping.join([y_runs[run] for run in blend.runs])
        standing = mapping.blend(x, y, blend.alpha, blend.algorithm, _gate(network, slot, blend, x))
        if blend.flow == Flow.STRAIGHT:
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
    values = stack.values.detach() if body.flow == Flow.FROZEN else stack.values
    if not is_all(body.members, len(stack)):
        values = values.index_select(0, body.members.tensor)
    mapping, users = network.mapping, stack.program.users
    if users is None:
        return mapping.call(stack.program, values, x)
    with of_the_user(users):
        result = mapping.call(stack.program, values, x)
    for given, got in zip(mapping.tensors(x), mapping.tensors(result), strict=True):
        if not isinstance(got, Tensor) or got.shape != given.shape:
            shown = list(got.shape) if isinstance(got, Tensor) else f"a {type(got).__name__}"
            raise UsersCodeError(f"{users}: it must return {list(given.shape)}, the shape of its input, got {shown}")
    return result


def _gate(network: Network, slot: int, blend: BlendCall, x: Features) -> Features | None:
    if blend.algorithm != BlendAlgorithm.GATE:
        return None
    stack = network.gates[slot]
    values = stack.values.detach() if blend.flow == Flow.FROZEN else stack.values
    return network.mapping.call(stack.program, values.index_select(0, blend.gates.tensor), x)
