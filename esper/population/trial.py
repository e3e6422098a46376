"""A mapping tried before a run: whatever it will be asked to do, done once on a few samples.

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
from esper.population.counterfactuals import Samples, valuate
from esper.population.mapping import build_mapping, stacked
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.population import Population
from esper.population.probes import PROBE_NAMES
from esper.population.training import GrowthStage
from esper.population.workload import Workload, bare_population, train_step
from esper.runtime.compiler import try_compiler
from esper.runtime.rng import generator, global_streams
from esper.runtime.user_code import UsersCodeError, place

BLENDED_ALPHA = 0.5
MAX_REASON = 240
SAMPLES = 2
"""Of a training step and of a validation: enough for an axis of them."""

Module = tuple[int, int, int]
"""Environment, slot, blueprint."""


def try_out(workload: Workload, name: str) -> None:
    """Run a mapping on a run's hosts: bare, and with each blueprint in each slot that it fits; leaves no trace.

    Training with every flow of gradients that a module can have, incubation, slot probes, and validation with all
    counterfactual passes. A compiled mapping is tried as it is before compilation, which takes up to a minute, and
    whether there is a compiler at all.

    Raises:
        ValueError: it cannot run them. One line: why, and where, if one blueprint or the host itself is the cause.
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
    """Why a mapping cannot be used, ``None`` if it can."""
    try:
        try_out(workload, name)
    except ValueError as error:
        return str(error)
    return None


def reason(error: BaseException) -> str:
    """An error on one line, with its type where the message may not tell what happened; compilers say much."""
    told = isinstance(error, ValueError | RuntimeError) and str(error)
    return shorten(str(error) if told else f"{type(error).__name__}: {error}", MAX_REASON, placeholder=" …")


def _reason_and_place(error: BaseException) -> str:
    if isinstance(error, UsersCodeError) and error.__cause__ is not None:
        error = error.__cause__  # what it was doing is known here
    where = place(error)
    return reason(error) if where is None else f"{reason(error)} ({where})"


def _culprit(workload: Workload, name: str) -> str | None:
    """The one thing that the mapping cannot run, found by trying each by itself; ``None`` if it is none by itself."""
    alone = replace(workload, num_envs=1)
    with global_streams():
        for modules in ([], *([(0, slot, blueprint)] for slot, blueprint in workload.compatible.nonzero().tolist())):
            try:
                _run(alone, name, modules)
            except Exception as error:  # of any kind, as before
                what = f"blueprint {blueprint_ids()[modules[0][2]]}" if modules else "the host"
                return f"{what}: {_reason_and_place(error)}"
    return None


def _run(workload: Workload, name: str, modules: Iterable[Module]) -> None:
    """Train and validate hosts with some modules, each of which once develops and once acts."""
    population = bare_population(workload, build_mapping(name))
    for number, (env, slot, blueprint) in enumerate(modules):
        algorithm = BlendAlgorithm(number % len(BlendAlgorithm))
        population.germinate(env, slot, blueprint, algorithm, generator("calibration", env, slot))
    for turn in range(2):
        growth = _growth(population, turn)
        train_step(workload, population, growth, PROBE_NAMES)
        _validate(workload, population, growth)


def _growth(population: Population, turn: int) -> GrowthStage:
    """Every other module develops, the others in the next turn; those that act are isolated in the second."""
    present = population.blueprint >= 0
    env, slot = torch.meshgrid(*(torch.arange(size) for size in present.shape), indexing="ij")
    developing = present & ((env + slot) % 2 == turn)
    acting = present & ~developing
    return GrowthStage(alpha=BLENDED_ALPHA * acting.double(), developing=developing, isolated=acting & bool(turn))


def _validate(workload: Workload, population: Population, growth: GrowthStage) -> None:
    targets, first = workload.val_targets[:SAMPLES], torch.arange(population.num_envs) == 0
    valuate(
        population,
        Samples(
            inputs=workload.val_inputs[:SAMPLES],
            targets=targets,
            weights=torch.ones(population.num_envs, len(targets)),
            prepare=workload.prepare,
        ),
        alpha=growth.alpha,
        developing=growth.developing,
        kept=growth.alpha > 0,
        kept_wanted=first,
        pairs_due=first,
        off_wanted=first,
    )
