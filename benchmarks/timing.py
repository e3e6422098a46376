"""Timing under noise: contenders take turns, and are compared with what ran beside them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter, process_time

import numpy as np

from benchmarks.records import Record

Contenders = Mapping[str, Callable[[], object]]
Clock = Callable[[], float]


CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
"""What users wait for, and what the processor spent on this process: on a busy machine only the second says much."""


def interleave(
    contenders: Contenders, rounds: int, warmup: int = 1, clock: Clock = perf_counter
) -> dict[str, list[float]]:
    """Seconds per call: every round calls each contender once, starting with another one each time.

    Args:
        contenders: what to call, by name.
        rounds: timed calls of each.
        warmup: rounds before them that are not timed.
        clock: one of :data:`CLOCKS`.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()  # a collection would be billed to whoever runs when it comes
    try:
        for number in range(-warmup, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                began = clock()
                contenders[name]()
                ended = clock()
                if number >= 0:
                    seconds[name].append(ended - began)
    finally:
        gc.enable()
    return seconds


def records(
    seconds: Mapping[str, list[float]],
    *,
    section: str,
    workload: str,
    hosts: int,
    floor: str,
    grown: str | None = None,
    per: int = 1,
    samples: int | None = None,
) -> list[Record]:
    """One record per contender, in milliseconds.

    Args:
        seconds: from :func:`interleave`.
        section, workload, hosts: what was timed.
        floor: the contender to divide by. A ratio is the median over rounds of the two times of one round, so that a
            slow phase of the machine does not count against whoever it met.
        grown: another contender to divide by: plain PyTorch with the same modules.
        per: number of things done in one call; times are given for one of them.
        samples: that one of them trains on.
    """
    compared = None if grown is None else seconds[grown]
    return [
        Record(
            section=section,
            workload=workload,
            hosts=hosts,
            implementation=name,
            median=float(np.median(times)) * 1e3 / per,
            p95=float(np.quantile(times, 0.95)) * 1e3 / per,
            ratio=float(np.median(np.divide(times, seconds[floor]))),
            ratio_grown=None if compared is None else float(np.median(np.divide(times, compared))),
            unit="ms",
            rounds=len(times),
            samples=samples,
        )
        for name, times in seconds.items()
    ]
