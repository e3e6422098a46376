"""Timing on a noisy machine: contenders take turns, and each is compared within the same round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter, process_time

import numpy as np

from benchmarks.records import Record

Contenders = Mapping[str, Callable[[], object]]
Clock = Callable[[], float]


CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
"""Wall clock, the time that users wait, and processor time, which is more meaningful on a busy machine."""


def interleave(
    contenders: Contenders,
    rounds: int,
    warmup: int = 1,
    clock: Clock = perf_counter,
    before: Contenders | None = None,
) -> dict[str, list[float]]:
    """Time contenders in turns and return seconds per call; each round calls every contender once, starting with
    another one.

    Args:
        contenders: functions to call, by name.
        rounds: timed calls of each contender.
        warmup: untimed rounds before them.
        clock: one of :data:`CLOCKS`.
        before: functions, by name of contender, that prepare each of its calls and are not timed.
    """
    before = before or {}
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()  # a garbage collection would count for whichever contender is running
    try:
        for number in range(-warmup, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                if name in before:
                    before[name]()
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
    """Make one record per contender, in milliseconds.

    Args:
        seconds: result of :func:`interleave`.
        section, workload, hosts: description of the timed work.
        floor: contender to divide by. A ratio is the median over rounds of two times of the same round, so that a slow
            phase of the machine affects both.
        grown: second contender to divide by: plain PyTorch with the same modules.
        per: number of units of work in one call; times are per unit.
        samples: training samples per unit.
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
