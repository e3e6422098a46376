"""Trial of a mapping before a run: every kind of work that the run needs, once on a few samples.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

import torch

from esper.blueprints import blueprint_ids
from esper.growth.actions import BlendAlgorithm
from esper.population.mapping import build_mapping, stacked
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.probes import PROBE_NAMES
from esper.population.workload import Workload, bare_population, mixed_growth, train_step, validate
from esper.runtime.compiler import try_compiler
from esper.runtime.rng import generator, global_streams
from esper.runtime.user_code import UsersCodeError, place

MAX_REASON = 240
SAMPLES = 2
"""Number of samples in a training step and in a validation of the trial."""

Module = tuple[int, int, int]
"""Environment, slot and blueprint of a module."""


def try_out(workload: Workload, name: str) -> None:
    """Run a mapping on a run's hosts: bare, and with each blueprint in each slot that it fits; has no side effects.

    Training with every flow of gradients that a module can have, incubation, slot probes, and validation with all
    counterfactual passes. A compiled mapping is tried uncompiled, because compilation takes up to a minute, and the
    compiler is tried separately.

    Raises:
        ValueError: it cannot run them. One line: the reason, and the blueprint or host if one alone is the cause.
    """
    if name.endswith(COMPILED_SUFFIX):
        try_compiler(workload.device, stacked.BACKEND)
    name = name.removesuffix(COMPILED_SUFFIX)
    try:
        with global_streams():
            workload = replace(workload, host=copy.deepcopy(workload.host), batch_size=SAMPLES)
            offered = [fits.nonzero().flatten().tolist() for fits in workload.compatible]
            num_envs = max(2, *map(len, offered))
            modules = [
                (env, slot, kinds[env % len(kinds)])
                for env in range(num_envs)
                for slot, kinds in enumerate(offered)
                if kinds
            ]
            _run(replace(workload, num_envs=2), name, [])
            _run(replace(workload, num_envs=num_envs), name, modules)
    except Exception as error:  # of any kind: compilers, drivers and users' code are run
        raise ValueError(_culprit(workload, name) or _reason_and_place(error)) from error


def why_not(workload: Workload, name: str) -> str | None:
    """Return the reason why a mapping cannot be used, ``None`` if it can."""
    try:
        try_out(workload, name)
    except ValueError as error:
        return str(error)
    return None


def reason(error: BaseException) -> str:
    """Format an error in one line, with its type if the message may be unclear; errors of compilers are shortened."""
    told = isinstance(error, ValueError | RuntimeError) and str(error)
    return shorten(str(error) if told else f"{type(error).__name__}: {error}", MAX_REASON, placeholder=" …")


def _reason_and_place(error: BaseException) -> str:
    if isinstance(error, UsersCodeError) and error.__cause__ is not None:
        error = error.__cause__  # the activity at the time is known here
    where = place(error)
    return reason(error) if where is None else f"{reason(error)} ({where})"


def _culprit(workload: Workload, name: str) -> str | None:
    """Find the one blueprint or host that the mapping cannot run, by trying each separately; ``None`` if each runs
    alone.
    """
    alone = replace(workload, num_envs=1)
    with global_streams():
        for modules in ([], *([(0, slot, blueprint)] for slot, blueprint in workload.compatible.nonzero().tolist())):
            try:
                _run(alone, name, modules)
            except Exception as error:  # of any kind, as above
                what = f"blueprint {blueprint_ids()[modules[0][2]]}" if modules else "the host"
                return f"{what}: {_reason_and_place(error)}"
    return None


def _run(workload: Workload, name: str, modules: Iterable[Module]) -> None:
    """Train and validate hosts with some modules, each once developing and once acting, isolated in turn 1."""
    population = bare_population(workload, build_mapping(name))
    for number, (env, slot, blueprint) in enumerate(modules):
        algorithm = BlendAlgorithm(number % len(BlendAlgorithm))
        population.germinate(env, slot, blueprint, algorithm, generator("calibration", env, slot))
    for turn in range(2):
        growth = mixed_growth(population, every=2, turn=turn, isolated=bool(turn))
        train_step(workload, population, growth, PROBE_NAMES)
        validate(workload, population, growth, SAMPLES, torch.arange(population.num_envs) == 0)
