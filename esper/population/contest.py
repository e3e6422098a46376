"""Mappings timed against each other on a run's own hosts, slots and batches.

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
from esper.population.counterfactuals import Samples, valuate
from esper.population.mapping import COMPILED_MAPPINGS, MAPPINGS, Mapping, build_mapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.population import Population
from esper.population.training import GrowthStage
from esper.population.trial import reason, try_out
from esper.population.workload import Workload, bare_population, train_step
from esper.runtime.rng import generator

BUDGET_SECONDS = 2.5
"""No new round begins after this; hosts of a CNN on digits then have 3 to 7 rounds behind them."""

MAX_ROUNDS = 7
SURE_ROUNDS = 2
HOPELESS = 1.5
"""After two rounds, a mapping whose fastest is this many times slower than the leader's is timed no further."""

CPU_STEP_SECONDS = 0.04
"""On a CPU, no more hosts than can take one step in this time: larger stacks of large hosts gain nothing there."""

MAX_VAL_SAMPLES = 256
COMPILED_ROUNDS = 3
BARE_SHARE = 1 / 3
"""Weight of hosts without modules: twins, and episodes before anything has grown."""

BLENDED_ALPHA = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How a contest went.

    Attributes:
        seconds: per host and training step, its share of validation included; one entry per mapping that can run all.
        refused: why a mapping can't, by name.
    """

    seconds: dict[str, float]
    refused: dict[str, str]


def hold_contest(workload: Workload, names: tuple[str, ...] = tuple(MAPPINGS), compiled: bool | None = None) -> Timings:
    """Time mappings in turns on a few training steps and validations, without and with a mix of modules.

    A time is that of an epoch (``steps_per_epoch`` steps and a validation with the contribution of every module),
    divided by hosts and steps, the median over rounds; :data:`BARE_SHARE` of it is without modules.

    Args:
        workload: what to train.
        names: mappings to time.
        compiled: also time the fastest of those that can be compiled against itself compiled, which takes up to a
            minute. By default only on an accelerator: on a CPU machine code was 1.2 to 1.8 times slower than
            torch's own kernels.
    """
    with torch.random.fork_rng(devices=[]):  # a run must not depend on whether its choice was cached
        began = perf_counter()
        workload = replace(workload, host=copy.deepcopy(workload.host))
        workload = replace(workload, num_envs=_affordable(workload))
        running: dict[str, _Contestant] = {}
        refused: dict[str, str] = {}
        for name in names:
            with _may_lose(name, running, refused):
                running[name] = _Contestant(workload, name)
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
                with _may_lose(name, running, refused):
                    times[name].append(running[name].turn())
        if workload.device.type != "cpu" if compiled is None else compiled:
            _time_compiled(workload, running, times, refused)
    return Timings(seconds={name: median(times[name]) for name in running}, refused=refused)


@contextmanager
def _may_lose(name: str, running: dict[str, _Contestant], refused: dict[str, str]) -> Iterator[None]:
    """Take a contestant out with its reason, whatever it fails of: the others can still run."""
    try:
        yield
    except Exception as error:  # compilers and drivers raise errors of all kinds, of which Python's own are a part
        running.pop(name, None)
        refused[name] = reason(error)


def _time_compiled(
    workload: Workload,
    running: dict[str, _Contestant],
    times: dict[str, list[float]],
    refused: dict[str, str],
) -> None:
    """Let the fastest mapping that can be compiled compete with itself compiled."""
    able = [name for name in running if f"{name}{COMPILED_SUFFIX}" in COMPILED_MAPPINGS]
    if not able:
        return
    plain = min(able, key=lambda name: median(times[name]))
    name = f"{plain}{COMPILED_SUFFIX}"
    with _may_lose(name, running, refused):
        running[name], times[name] = _Contestant(workload, name), []
        running[name].turn()  # compiles
    for _ in range(COMPILED_ROUNDS):
        for rival in (plain, name):
            if name in running and rival in running:
                with _may_lose(rival, running, refused):
                    times[rival].append(running[rival].turn())


def _affordable(workload: Workload) -> int:
    """Number of hosts to time: all, but on a CPU no more than make a step of sensible length."""
    if workload.device.type != "cpu":
        return workload.num_envs
    few = replace(workload, num_envs=min(2, workload.num_envs))
    try:
        population = _populate(few, build_mapping("loop"), grown=False)
        growth = _growth(population)
        for _ in range(2):  # the first time warms up
            began = perf_counter()
            train_step(few, population, growth)
            seconds = (perf_counter() - began) / few.num_envs
    except Exception:  # of any kind: the contest meets it again and says what it is
        return few.num_envs
    return max(few.num_envs, min(workload.num_envs, int(CPU_STEP_SECONDS / seconds)))


class _Contestant:
    """One mapping with two populations: bare hosts, and hosts with modules in every third of three states.

    Raises:
        ValueError: the mapping cannot run the host or a blueprint.
        Exception: of any kind: it fails to run so many of them.
    """

    def __init__(self, workload: Workload, name: str) -> None:
        self._workload = workload
        try_out(workload, name)
        mapping = build_mapping(name)
        self._bare = _populate(workload, mapping, grown=False)
        self._grown = _populate(workload, mapping, grown=True)

    def turn(self) -> float:
        """Seconds per host and step, from one training step and one validation of each population."""
        bare, grown = self._epoch(self._bare), self._epoch(self._grown)
        epoch = BARE_SHARE * bare + (1 - BARE_SHARE) * grown
        return epoch / (self._workload.steps_per_epoch * self._workload.num_envs)

    def _epoch(self, population: Population) -> float:
        """Seconds of an epoch, extrapolated."""
        workload, growth = self._workload, _growth(population)
        began = perf_counter()
        train_step(workload, population, growth)
        trained = perf_counter()
        targets = workload.val_targets[:MAX_VAL_SAMPLES]
        nobody = torch.zeros(population.num_envs, dtype=torch.bool)
        valuate(
            population,
            Samples(
                inputs=workload.val_inputs[:MAX_VAL_SAMPLES],
                targets=targets,
                weights=torch.ones(population.num_envs, len(targets)),
                prepare=workload.prepare,
            ),
            alpha=growth.alpha,
            developing=growth.developing,
            kept=torch.zeros_like(growth.developing),
            kept_wanted=nobody,
            pairs_due=nobody,
        )
        validated = perf_counter() - trained
        return workload.steps_per_epoch * (trained - began) + validated * len(workload.val_targets) / len(targets)


def _populate(workload: Workload, mapping: Mapping, *, grown: bool) -> Population:
    """Hosts at birth; with ``grown`` two thirds of their slots have a module, of all blueprints and blends in turn."""
    population, turn = bare_population(workload, mapping), 0
    for slot, fits in enumerate(workload.compatible if grown else ()):
        offered = fits.nonzero().flatten().tolist()
        for env in range(workload.num_envs):
            if offered and (env + slot) % 3:
                stream, algorithm = generator("calibration", env, slot), BlendAlgorithm(turn % len(BlendAlgorithm))
                population.germinate(env, slot, offered[turn % len(offered)], algorithm, stream)
                turn += 1
    return population


def _growth(population: Population) -> GrowthStage:
    """Half of the modules develop, half are blended in."""
    present = population.blueprint >= 0
    env, slot = torch.meshgrid(*(torch.arange(size) for size in present.shape), indexing="ij")
    developing = present & ((env + slot) % 3 == 1)
    alpha = BLENDED_ALPHA * (present & ~developing).double()
    return GrowthStage(alpha=alpha, developing=developing, isolated=torch.zeros_like(present))
