"""Resharding: the states of a run's ranks, redistributed to another number of ranks.

Environments keep their numbers and continue where they were; other state is passed on where possible. The run remains
valid, but not equal to the bit: hosts are stacked differently, and ranks use other random streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from esper.experiment.imitating import EXPERT
from esper.runtime.state import State
from esper.telemetry.counters import IterationCounters

BY_ENVIRONMENT = ("env", "buffer", "carry")
"""Components whose state has a leading environment axis in every tensor, or rows of a stack of environments."""

NOT_KEPT = ("recorder", "events", "twins", "num_threads", "device", EXPERT)
"""Parts of a rank's state that are merged, sent by the first rank, recreated, or specific to a process; and that of an
imitated controller, in a form of its own, which plays on as if its episodes began.
"""


def reshard(states: Sequence[State], shares: Sequence[range]) -> list[State]:
    """Redistribute states to as many ranks as there are shares.

    Args:
        states: states of the run's former ranks, in order.
        shares: environments of each new rank.

    Returns:
        One state per rank, without twins and, on ranks that are new, without random streams. ``waiting`` holds
        events that the first rank has not received yet and must emit.
    """
    counts = [len(state["env"]["over"]) for state in states]
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    whole = {name: _join([state[name] for state in states], starts) for name in BY_ENVIRONMENT}
    found: list[State] = [
        {name: _take(whole[name], share) for name in BY_ENVIRONMENT} | _streams(states, rank)
        for rank, share in enumerate(shares)
    ]
    every = [IterationCounters.from_state(state["recorder"]["tally"]) for state in states]
    empty = IterationCounters(families=every[0].families, rents=every[0].rents)
    for rank, state in enumerate(found):
        counters = IterationCounters.merged(every) if rank == 0 else empty
        state["recorder"] = {"iteration": states[0]["recorder"]["iteration"], "tally": counters.state_dict()}
        state["waiting"] = [] if rank else [event for own in states[1:] for event in own["events"]["events"]]
    return found


def _streams(states: Sequence[State], rank: int) -> State:
    """Return a rank's state that belongs to no environment: random streams, and that of its algorithm."""
    own = states[rank].items() if rank < len(states) else ()
    return {name: part for name, part in own if name not in (*BY_ENVIRONMENT, *NOT_KEPT)}


def _is_stack(part: object) -> bool:
    return isinstance(part, dict) and "environments" in part


def _join(parts: Sequence[Any], starts: Sequence[int]) -> Any:
    """Join all ranks' parts of a state, with environments numbered from the first rank's first."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, list):
        return [_join(column, starts) for column in zip(*parts, strict=True)]
    if not isinstance(first, dict):
        assert all(part is None for part in parts), "only tensors and nothing at all can be joined"
        return None
    keys = dict.fromkeys(key for part in parts for key in part)
    joined = {}
    for key in keys:
        own = [(part[key], start) for part, start in zip(parts, starts, strict=True) if key in part]
        values, offsets = [value for value, _ in own], [start for _, start in own]
        if key == "environments":
            joined[key] = torch.cat([value + offset for value, offset in own])
        else:
            joined[key] = _join(values, offsets)
    return joined


def _take(whole: Any, share: range) -> Any:
    """Select one rank's part of a state, with environments numbered from its own first."""
    if isinstance(whole, Tensor):
        return whole[share.start : share.stop].clone()
    if isinstance(whole, list):
        return [_take(part, share) for part in whole]
    if not isinstance(whole, dict):
        return whole
    if _is_stack(whole):
        numbers = whole["environments"]
        rows = ((numbers >= share.start) & (numbers < share.stop)).nonzero().flatten()
        return {name: value[rows] for name, value in whole.items()} | {"environments": numbers[rows] - share.start}
    parts = {key: _take(part, share) for key, part in whole.items()}
    # A stack without rows is a module that no environment of this share has.
    return {key: part for key, part in parts.items() if not (_is_stack(part) and not len(part["environments"]))}
