"""Benchmark of mappings on a run's own hosts, slots and batches.

Axis legend: E = environments, S = slots, B = blueprints, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from esper.growth.actions import BlendAlgorithm
from esper.population.mapping import COMPILED_MAPPINGS, MAPPINGS, Mapping, build_mapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.population import Population
from esper.population.trial import reason, try_out
from esper.population.workload import Workload, bare_population, mixed_growth, train_step, validate
from esper.runtime.rng import generator

BUDGET_SECONDS = 2.5
"""Seconds after which no new round starts; CNN hosts on digits complete 3 to 7 rounds in this time."""

MAX_ROUNDS = 7
SURE_ROUNDS = 2
HOPELESS = 1.5
"""Factor by which a mapping must be slower than the fastest after two rounds to be dropped."""

CPU_STEP_SECONDS = 0.04
"""Longest step in seconds on a CPU; more hosts are not timed, because larger stacks of large hosts gain nothing
there.
"""

MAX_VAL_SAMPLES = 256
COMPILED_ROUNDS = 3
BARE_SHARE = 1 / 3
"""Weight of hosts without modules, as in twins and in episodes before anything has grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Results of the benchmark.

    Attributes:
        seconds: seconds per host and training step, including its share of validation, by mapping.
        refused: reason by name of each mapping that cannot run everything.
    """

    seconds: dict[str, float]
    refused: dict[str, str]


def time_mappings(
    workload: Workload, names: tuple[str, ...] = tuple(MAPPINGS), compiled: bool | None = None
) -> Timings:
    """Time mappings in turns on a few training steps and validations, without and with a mix of modules.

    A result is the time of an epoch (``steps_per_epoch`` steps and a validation with the contribution of every module),
    divided by hosts and steps, the median over rounds; hosts without modules have weight :data:`BARE_SHARE`.

    Args:
        workload: hosts, data and settings to time.
        names: mappings to time.
        compiled: also time the fastest compilable mapping against its compiled form, which takes up to a minute. By
            default only on an accelerator: on a CPU compiled code was 1.2 to 1.8 times slower than torch's own kernels.
    """
    with torch.random.fork_rng(devices=[]):  # a run must not depend on whether its choice was cached
        began = perf_counter()
        workload = replace(workload, host=copy.deepcopy(workload.host))
        workload = replace(workload, num_envs=_affordable(workload))
        running: dict[str, _Candidate] = {}
        refused: dict[str, str] = {}
        for name in names:
            with _refused_if_it_fails(name, running, refused):
                running[name] = _Candidate(workload, name)
                running[name].turn()  # warm-up, and the first to see that every part runs
        times: dict[str, list[float]] = {name: [] for name in running}
        for number in range(MAX_ROUNDS):
            best = {name: min(times[name]) for name in running if number}
            limit = HOPELESS * min(best.values(), default=0.0)
            close = [name for name in running if number < SURE_ROUNDS or best[name] <= limit]
            if number and (len(close) < 2 or perf_counter() - began > BUDGET_SECONDS):
                break
            first = number % max(1, len(close))
            for name in close[first:] + close[:first]:
                with _refused_if_it_fails(name, running, refused):
                    times[name].append(running[name].turn())
        if workload.device.type != "cpu" if compiled is None else compiled:
            _time_compiled(workload, running, times, refused)
    return Timings(seconds={name: median(times[name]) for name in running}, refused=refused)


@contextmanager
def _refused_if_it_fails(name: str, running: dict[str, _Candidate], refused: dict[str, str]) -> Iterator[None]:
    """Remove a candidate, with the reason, whatever its error: the others can still run."""
    try:
        yield
    except Exception as error:  # compilers and drivers raise errors of all kinds, Python's own among them
        running.pop(name, None)
        refused[name] = reason(error)


def _time_compiled(
    workload: Workload,
    running: dict[str, _Candidate],
    times: dict[str, list[float]],
    refused: dict[str, str],
) -> None:
    """Time the compiled form of the fastest compilable mapping."""
    able = [name for name in running if f"{name}{COMPILED_SUFFIX}" in COMPILED_MAPPINGS]
    if not able:
        return
    plain = min(able, key=lambda name: median(times[name]))
    name = f"{plain}{COMPILED_SUFFIX}"
    with _refused_if_it_fails(name, running, refused):
        running[name], times[name] = _Candidate(workload, name), []
        running[name].turn()  # compiles
    for _ in range(COMPILED_ROUNDS):
        for rival in (plain, name):
            if name in running and rival in running:
                with _refused_if_it_fails(rival, running, refused):
                    times[rival].append(running[rival].turn())


def _affordable(workload: Workload) -> int:
    """Return the number of hosts to time: all, but on a CPU no more than keep a step short enough."""
    if workload.device.type != "cpu":
        return workload.num_envs
    few = replace(workload, num_envs=min(2, workload.num_envs))
    try:
        population = _populate(few, build_mapping("loop"), grown=False)
        growth = mixed_growth(population, every=3, turn=1)
        for _ in range(2):  # the first time warms up
            began = perf_counter()
            train_step(few, population, growth)
            seconds = (perf_counter() - began) / few.num_envs
    except Exception:  # of any kind: the benchmark meets it again and reports it
        return few.num_envs
    return max(few.num_envs, min(workload.num_envs, int(CPU_STEP_SECONDS / seconds)))


class _Candidate:
    """One mapping with two populations: bare hosts, and hosts with modules in three states, a third of the slots each.

    Raises:
        ValueError: the mapping cannot run the host or a blueprint.
        Exception: of any kind: it fails with so many hosts.
    """

    def __init__(self, workload: Workload, name: str) -> None:
        self._workload = workload
        try_out(workload, name)
        mapping = build_mapping(name)
        self._bare = _populate(workload, mapping, grown=False)
        self._grown = _populate(workload, mapping, grown=True)

    def turn(self) -> float:
        """Return seconds per host and step, from one training step and one validation of each population."""
        bare, grown = self._epoch(self._bare), self._epoch(self._grown)
        epoch = BARE_SHARE * bare + (1 - BARE_SHARE) * grown
        return epoch / (self._workload.steps_per_epoch * self._workload.num_envs)

    def _epoch(self, population: Population) -> float:
        """Return the seconds of an epoch, extrapolated."""
        workload, growth = self._workload, mixed_growth(population, every=3, turn=1)
        began = perf_counter()
        train_step(workload, population, growth)
        trained = perf_counter()
        num_val = len(workload.val_targets)
        validate(workload, population, growth, MAX_VAL_SAMPLES, torch.zeros(population.num_envs, dtype=torch.bool))
        validated = perf_counter() - trained
        return workload.steps_per_epoch * (trained - began) + validated * num_val / min(num_val, MAX_VAL_SAMPLES)


def _populate(workload: Workload, mapping: Mapping, *, grown: bool) -> Population:
    """Build hosts at birth; with ``grown`` two thirds of their slots have a module, of all blueprints and blends in
    turn.
    """
    population, turn = bare_population(workload, mapping), 0
    for slot, fits in enumerate(workload.compatible if grown else ()):
        offered = fits.nonzero().flatten().tolist()
        for env in range(workload.num_envs):
            if offered and (env + slot) % 3:
                stream, algorithm = generator("calibration", env, slot), BlendAlgorithm(turn % len(BlendAlgorithm))
                population.germinate(env, slot, offered[turn % len(offered)], algorithm, stream)
                turn += 1
    return population
