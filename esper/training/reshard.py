"""The states of a run's ranks, rearranged for another number of ranks.

Environments keep their numbers and go on where they were; what does not belong to an environment is handed on where it
can be. The run goes on soundly, but not to the bit: hosts are stacked otherwise, and ranks draw from other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from esper.runtime.state import State
from esper.telemetry.counters import IterationTally

BY_ENVIRONMENT = ("env", "buffer", "carry")
"""Components in whose state every tensor has a leading environment axis, or is a row of a stack of environments."""


def redistributed(states: Sequence[State], shares: Sequence[range]) -> list[State]:
    """States of as many ranks as there are shares.

    Args:
        states: of the ranks of the run so far, in order.
        shares: which environments each rank has from now on.

    Returns:
        One state per rank, without twins and, on ranks that are new, without random streams. ``waiting`` are events
        that the first rank has not heard of yet: for it to emit.
    """
    counts = [len(state["env"]["over"]) for state in states]
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    whole = {name: _join([state[name] for state in states], starts) for name in BY_ENVIRONMENT}
    found: list[State] = [
        {name: _take(whole[name], share) for name in BY_ENVIRONMENT} | _streams(states, rank)
        for rank, share in enumerate(shares)
    ]
    tallies = [IterationTally.from_state(state["recorder"]["tally"]) for state in states]
    empty = IterationTally(families=tallies[0].families)
    for rank, state in enumerate(found):
        tally = IterationTally.merged(tallies) if rank == 0 else empty
        state["recorder"] = {"iteration": states[0]["recorder"]["iteration"], "tally": tally.state_dict()}
        state["waiting"] = [] if rank else [event for own in states[1:] for event in own["events"]["events"]]
    return found


def _streams(states: Sequence[State], rank: int) -> State:
    return {name: states[rank][name] for name in ("sampling", "shuffling")} if rank < len(states) else {}


def _is_stack(part: object) -> bool:
    return isinstance(part, dict) and "environments" in part


def _join(parts: Sequence[Any], starts: Sequence[int]) -> Any:
    """All ranks' parts of a state as one, environments numbered from the first rank's first."""
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
    """One rank's part of a state, environments numbered from its own first."""
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
