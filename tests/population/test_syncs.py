"""An epoch of training reads nothing back from the device while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import NEEDS_FP16
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, PROBE_NAMES, GrowthStage, Population, epoch
from esper.tasks.batches import TrainingSamples
from tests.population.growing import CNN_BLUEPRINTS, nothing, orders, pool, populate
from tests.tiers import few

NUM_ENVS = 3
BATCH = 8

# What makes a program wait for a device: a number or an array for Python, a copy to the CPU, a size that depends on
# values. The first are seen where Python calls them, the others wherever they are called, backward included.
CALLS = {
    getattr(torch.Tensor, name)
    for name in ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
}
OPERATIONS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
}


class _Calls(TorchFunctionMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CALLS:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OPERATIONS:
            self.counts[str(func)] += 1
        # A mask as an index is a nonzero in disguise.
        masks = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        if func in masks and any(index is not None and index.dtype == torch.bool for index in args[1]):
            self.counts["index by a mask"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Count operations that synchronise with the device, by name."""
    counts: Counter[str] = Counter()
    with _Calls(counts), _Operations(counts):
        yield counts


def growing(
    mapping: str, device: str = "cpu", autocast_dtype: torch.dtype | None = None
) -> tuple[Population, GrowthStage]:
    """Modules of several blueprints and all blends, developing, isolated and blended, in every mix of slots."""
    sites = [
        (env, slot, CNN_BLUEPRINTS[(env + 2 * slot) % len(CNN_BLUEPRINTS)], BlendAlgorithm((env + slot) % 3))
        for env in range(NUM_ENVS)
        for slot in range(3)
    ]
    population = populate(mapping, range(NUM_ENVS), sites, device=device, autocast_dtype=autocast_dtype)
    stage = nothing(NUM_ENVS)
    stage.developing[0] = True
    stage.developing[1, 0] = True
    stage.alpha[1, 1:] = 0.5
    stage.alpha[2] = 1.0
    stage.isolated[2, 1] = True
    return population, stage


def train(population: Population, stage: GrowthStage, incubation: str, num_steps: int) -> None:
    images, labels = (tensor.to(population.device) for tensor in pool())
    epoch.train_epoch(
        population,
        TrainingSamples(images, labels),
        orders(range(NUM_ENVS), num_steps * BATCH),
        stage,
        incubation=incubation,
        num_steps=num_steps,
        lr=0.01,
        max_grad_norm=1.0,
        probes=PROBE_NAMES,
    )


@pytest.mark.parametrize("autocast_dtype", [None, pytest.param(torch.float16, marks=NEEDS_FP16)], ids=["fp32", "fp16"])
@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(3)
def test_steps_read_nothing_back_and_the_epoch_does_so_twice(
    mapping: str, incubation: str, autocast_dtype: torch.dtype | None
) -> None:
    counts = []
    for num_steps in (1, 4):
        population, stage = growing(mapping, autocast_dtype=autocast_dtype)
        with counted_reads() as reads:
            train(population, stage, incubation, num_steps)
        counts.append(reads)
    assert counts[0] == counts[1]
    assert counts[0]["cpu"] == 2  # losses and norms; probes


def test_a_read_would_be_counted() -> None:
    x = torch.arange(3.0)
    for read in (lambda: x.sum().item(), x.tolist, x.cpu, lambda: bool(x[0] > 1), lambda: x[x > 1]):
        with counted_reads() as reads:
            read()
        assert reads.total() >= 1


@pytest.mark.gpu
@pytest.mark.parametrize("autocast_dtype", [None, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_no_step_waits_for_a_gpu(
    mapping: str, incubation: str, autocast_dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first step to reading the results: gradients, optimizer, norms and scales included."""
    population, stage = growing(mapping, "cuda", autocast_dtype)
    train(population, stage, incubation, 1)  # what is made once, such as the constants of a mapping, may wait
    step_gradients, read = epoch.step_gradients, epoch._read
    steps = []

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        steps.append(1)
        torch.cuda.set_sync_debug_mode("error")
        return step_gradients(*args, **kwargs)

    def allowed(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return read(*args, **kwargs)

    monkeypatch.setattr(epoch, "step_gradients", forbidden)
    monkeypatch.setattr(epoch, "_read", allowed)
    try:
        train(population, stage, incubation, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) == 3
