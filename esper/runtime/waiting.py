"""Time that a user has waited for a command before its run begins: imports, checks, and the start of ranks."""

from __future__ import annotations

from time import perf_counter

_since: list[float] = []
"""Moment at which the command began; empty once a run has counted it: later runs of a process begin by themselves."""


def begin(earlier: float = 0.0) -> None:
    """Start the clock, with the seconds that another process has waited before."""
    _since[:] = [(_since[0] if _since else perf_counter()) - earlier]


def waited() -> float:
    """Return the seconds since the command began, to the first caller; 0 to later ones."""
    return perf_counter() - _since.pop() if _since else 0.0
