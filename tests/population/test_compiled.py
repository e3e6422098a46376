"""Compiled mappings: equal numbers, compiled once per segment of the host, whatever grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

import esper.population.mapping.stacked as stacked
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, PROBE_NAMES, Population, Samples, autotune, evaluate, train_epoch
from esper.population.autotune import time_mappings
from esper.population.mapping import COMPILED_MAPPINGS
from esper.tasks.batches import TrainingSamples
from tests.population.growing import CNN_BLUEPRINTS, nothing, orders, pool, populate, random_growth, stir
from tests.population.test_calibration import workload
from tests.population.test_mappings import assert_close, one_step

# torch's own warnings while it compiles: it hides the first, which turning warnings into errors undoes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NUM_SECTIONS = 4
TRACED = [pytest.param(name, marks=() if "matmul" in name else pytest.mark.slow) for name in COMPILED_MAPPINGS]
"""One of them is traced in the fast tests; tracing takes seconds."""


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and differentiate as for compilation, without generating code: a fraction of a second instead of a
    minute.
    """
    monkeypatch.setattr(stacked, "BACKEND", "aot_eager")


def num_compiled() -> int:
    return counters["stats"]["unique_graphs"]


def train(population: Population, epoch: int = 0, incubation: str = "auxiliary") -> None:
    """Train an epoch with the present modules, half of them in isolation, with probes and a validation."""
    images, labels = pool()
    present = population.blueprint >= 0
    growth = nothing(population.num_envs)
    growth.developing[present] = torch.arange(int(present.sum())) % 2 == 0
    growth.alpha[present & ~growth.developing] = 0.5
    order = orders(range(population.num_envs), 48, epoch)
    train_epoch(
        population,
        TrainingSamples(images, labels),
        order,
        growth,
        incubation=incubation,
        num_steps=3,
        lr=0.01,
        probes=PROBE_NAMES[: 4 * (epoch % 2)],
    )
    evaluate(population, Samples(inputs=images, targets=labels, weights=torch.ones(len(present), 120)), growth.alpha)


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("mapping", TRACED)
def test_each_part_is_compiled_once_whatever_grows(mapping: str) -> None:
    before = num_compiled()
    population = populate(mapping, range(4))
    for epoch in range(6):
        train(population, epoch, ("auxiliary", "straight_through")[epoch % 2])
        assert num_compiled() - before == NUM_SECTIONS
        for environment in range(epoch % 4):
            if population.blueprint[environment, epoch % 3] < 0:
                blueprint = CNN_BLUEPRINTS[(environment + epoch) % len(CNN_BLUEPRINTS)]
                stream = torch.Generator().manual_seed(epoch)
                population.germinate(environment, epoch % 3, blueprint, BlendAlgorithm(environment % 3), stream)


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_populations_of_one_host_share_what_was_compiled() -> None:
    """Environments of the closing table come and go; only another number of hosts compiles again."""
    first = populate("matmul_compiled", range(3))
    train(first)
    before = num_compiled()
    for num_envs, more in ((3, 0), (5, NUM_SECTIONS), (3, NUM_SECTIONS), (5, NUM_SECTIONS)):
        population = Population(first.host, first.slot_ids, num_envs, first.mapping)
        values = first.hosts.values.detach()[:1].expand(num_envs, -1)
        population.reset(range(num_envs), values, torch.ones_like(values, dtype=torch.bool))
        train(population)
        assert num_compiled() - before == more


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("mapping", TRACED)
def test_a_traced_step_agrees_with_the_loop(mapping: str) -> None:
    sites, growth = random_growth(2, 6)
    results = []
    for name in ("loop", mapping):
        population = populate(name, range(6), sites)
        stir(population)
        results.append(one_step(population, growth, "auxiliary", list(range(6))))
    assert_close(results[1], results[0], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mapping", COMPILED_MAPPINGS)
def test_machine_code_agrees_with_the_loop_and_does_not_depend_on_the_place(mapping: str) -> None:
    """To 1e-5 in one step; and bit for bit wherever a host is in the stack, so that never growing earns exactly 0."""
    numbers, size = list(range(8)), 16
    sites, growth = random_growth(1, 8)
    loop, first = populate("loop", numbers, sites), populate(mapping, numbers, sites)
    for population in (loop, first):
        stir(population)
    expected, found = (one_step(population, growth, "auxiliary", numbers, size) for population in (loop, first))
    assert_close(found, expected, 1e-5)
    images, labels = pool()
    births, values = first.hosts.values.detach().clone(), []
    for rows in (numbers, list(reversed(numbers))):
        # Of the same host and mapping, and on batches of the same size: nothing is compiled again.
        population = Population(first.host, first.slot_ids, 8, first.mapping)
        population.reset(range(8), births[rows], torch.ones_like(births, dtype=torch.bool))
        order = orders(rows, size * 4)
        train_epoch(
            population, TrainingSamples(images, labels), order, nothing(8), incubation="auxiliary", num_steps=4, lr=0.01
        )
        values.append(population.hosts.values.detach())
    assert torch.equal(values[0], values[1].flip(0))


# ----------------------------------------------------------------------------------------------------- in the benchmark


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_the_fastest_mapping_competes_with_itself_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)
    timings = time_mappings(workload(), ("loop", "matmul"), compiled=True)
    assert set(timings.seconds) == {"loop", "matmul", "matmul_compiled"}
    assert set(time_mappings(workload(), ("loop",), compiled=True).seconds) == {"loop"}, "a loop is not compiled"


def test_a_compiler_that_fails_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object, inputs: object) -> object:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(stacked, "BACKEND", broken)
    monkeypatch.setattr(autotune, "BUDGET_SECONDS", 0.0)
    timings = time_mappings(workload(), ("matmul",), compiled=True)
    assert set(timings.seconds) == {"matmul"}
    assert "no compiler here" in timings.refused["matmul_compiled"]


@pytest.mark.gpu
def test_a_benchmark_on_a_gpu_times_everything_and_one_of_them_compiled() -> None:
    task = workload()
    fields = ("inputs", "targets", "val_inputs", "val_targets")
    timings = time_mappings(replace(task, **{name: getattr(task, name).cuda() for name in fields}))
    assert timings.refused == {}
    assert set(MAPPINGS) < set(timings.seconds)
    assert len(set(COMPILED_MAPPINGS) & set(timings.seconds)) == 1
