"""Helpers for tests of half precision: short training, bit-exact comparison of stacks, overflow of a loss scale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from helpers import NEEDS_FP16
from torch import Tensor

from esper.population import GrowthStage, Population, train_epoch
from esper.population.epoch import EpochStats
from esper.population.scaling import MAX_SCALE, Scaling
from esper.population.stack import Stack
from esper.population.training import StepGradients, plan_parts, plan_scaling, step_gradients
from esper.tasks.batches import TrainingSamples
from tests.population.growing import orders, pool

FP16 = torch.float16
HOST = 0
"""Column of the hosts' loss scales; a slot's is one more than its number."""

half = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16"), pytest.param(FP16, id="fp16", marks=NEEDS_FP16)]
)


def train(
    population: Population, growth: GrowthStage, *, num_steps: int = 3, incubation: str = "auxiliary", epoch: int = 0
) -> EpochStats:
    images, labels = pool()
    order = orders(range(population.num_envs), 16 * num_steps, epoch)
    return train_epoch(
        population, TrainingSamples(images, labels), order, growth, incubation=incubation, num_steps=num_steps, lr=0.01
    )


def one_step(
    population: Population, growth: GrowthStage, x: Tensor, y: Tensor, incubation: str = "auxiliary"
) -> tuple[StepGradients, Scaling | None]:
    """Losses and gradients of one step of ``x [E, B, ...]``, as an epoch takes it, and the scales that it used."""
    parts = plan_parts(population, growth, incubation)
    scaling = plan_scaling(population, growth, parts)
    own = torch.arange(y.numel(), device=y.device).view_as(y)
    step = step_gradients(
        population, parts, TrainingSamples(x.flatten(0, 1), y.flatten()), own, probes=(), scaling=scaling
    )
    return step, scaling


def state(stack: Stack) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor], rows: Sequence[int]) -> bool:
    return all(torch.equal(a[list(rows)], b[list(rows)]) for a, b in zip(ours, theirs, strict=True))


def scale_of(population: Population, environment: int, column: int = HOST) -> float:
    assert population.scales is not None
    return float(population.scales.scale[environment, column])


def provoke(population: Population, environment: int, column: int = HOST) -> None:
    """Set a loss scale so high that gradients overflow."""
    assert population.scales is not None
    population.scales.scale[environment, column] = MAX_SCALE
