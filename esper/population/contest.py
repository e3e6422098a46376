"""Mappings timed against each other on a run's own hosts, slots and batches.

Axis legend: E = environments, S = slots, B = blueprints, N = samples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from textwrap import shorten
from time import perf_counter

import torch
from torch import Tensor

from esper.actions import BlendAlgorithm
from esper.blueprints import blueprint_ids, build_blueprint
from esper.hosts import SegmentedHost
from esper.layouts import layout_of
from esper.population.counterfactuals import Samples, valuate
from esper.population.layout import flatten_parameters, settle_buffers
from esper.population.mapping import COMPILED_MAPPINGS, MAPPINGS, Mapping, build_mapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.population import Population
from esper.population.training import GrowthStage, train_epoch
from esper.rng import generator
from esper.tasks.batches import Prepare, as_stored, take_inputs

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
LEARNING_RATE = 1e-3
MAX_REASON = 200
PROBE_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a run asks of its mapping.

    Attributes:
        host: prototype; its parameters are neither used nor changed.
        slot_ids: places used as slots, in canonical order.
        compatible: ``bool [S, B]``, blueprints that may germinate.
        num_envs: hosts trained together.
        inputs, targets: training samples ``[N, ...]``, on the device, as they are stored.
        val_inputs, val_targets: validation samples, likewise.
        prepare: makes of inputs what hosts read.
        batch_size: samples of one step of one host.
        steps_per_epoch: steps between two validations.
        incubation: learning signal of developing modules.
        autocast_dtype: what products and convolutions compute in, ``None`` for the samples' own type.
    """

    host: SegmentedHost
    slot_ids: tuple[str, ...]
    compatible: Tensor
    num_envs: int
    inputs: Tensor
    targets: Tensor
    val_inputs: Tensor
    val_targets: Tensor
    batch_size: int
    steps_per_epoch: int
    incubation: str
    autocast_dtype: torch.dtype | None = None
    prepare: Prepare = as_stored

    @property
    def device(self) -> torch.device:
        """Where hosts are trained."""
        return self.inputs.device


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
        refused[name] = _reason(error)


def _reason(error: Exception) -> str:
    """Its message on one line, with its type where the message may not tell what happened; compilers say much."""
    told = isinstance(error, ValueError | RuntimeError) and str(error)
    return shorten(str(error) if told else f"{type(error).__name__}: {error}", MAX_REASON, placeholder=" …")


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
            _train(few, population, growth)
            seconds = (perf_counter() - began) / few.num_envs
    except Exception:  # of any kind: the contest meets it again and says what it is
        return few.num_envs
    return max(few.num_envs, min(workload.num_envs, int(CPU_STEP_SECONDS / seconds)))


class _Contestant:
    """One mapping with two populations: bare hosts, and hosts with modules in every third of three states.

    Raises:
        ValueError: the mapping has no form of some layer of the host or of a blueprint, or fails to run a blueprint.
        Exception: of any kind: it fails to run the host.
    """

    def __init__(self, workload: Workload, name: str) -> None:
        self._workload = workload
        mapping = build_mapping(name)
        _try_blueprints(workload, mapping)
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
        _train(workload, population, growth)
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


def _train(workload: Workload, population: Population, growth: GrowthStage) -> None:
    """One training step. Its statistics end on the CPU, so that the device has finished when it returns."""
    size = population.num_envs, workload.batch_size
    order = torch.randint(len(workload.targets), size, generator=generator("calibration", "order"))
    train_epoch(
        population,
        workload.inputs,
        workload.targets,
        order,
        growth,
        incubation=workload.incubation,
        num_steps=1,
        lr=LEARNING_RATE,
        take=lambda inputs, index: workload.prepare(take_inputs(inputs, index)),
    )


def _populate(workload: Workload, mapping: Mapping, *, grown: bool) -> Population:
    """Hosts at birth; with ``grown`` two thirds of their slots have a module, of all blueprints and blends in turn."""
    host, num_envs = workload.host, workload.num_envs
    population = Population(
        host,
        workload.slot_ids,
        num_envs,
        mapping,
        device=workload.device,
        autocast_dtype=workload.autocast_dtype,
    )
    values = []
    for env in range(num_envs):
        host.reset(generator("calibration", env))
        values.append(flatten_parameters(host.segments))
    population.reset(range(num_envs), torch.stack(values), torch.ones_like(torch.stack(values), dtype=torch.bool))
    turn = 0
    for slot, fits in enumerate(workload.compatible if grown else ()):
        offered = fits.nonzero().flatten().tolist()
        for env in range(num_envs):
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


def _try_blueprints(workload: Workload, mapping: Mapping) -> None:
    """Run every blueprint that may germinate once: few hosts do not have them all."""
    sites = [workload.host.place(slot_id).site for slot_id in workload.slot_ids]
    wanted = {(blueprint, *sites[slot]) for slot, blueprint in workload.compatible.nonzero().tolist()}
    for blueprint, family, width in sorted(wanted):
        blueprint_id = blueprint_ids()[blueprint]
        try:
            module = build_blueprint(family, blueprint_id, width)
            settle_buffers(module, workload.device)
            program = mapping.prepare(module)
            parameters = torch.zeros(1, program.layout.size, device=workload.device)
            feature = torch.zeros(1, *layout_of(family).probe(width, PROBE_SIZE), device=workload.device)
            with torch.no_grad():
                mapping.call(program, parameters, mapping.pack(feature))
        except Exception as error:  # whatever compilers and users' code raise
            raise ValueError(f"blueprint {blueprint_id}: {_reason(error)}") from error
