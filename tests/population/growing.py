"""Small populations of growing hosts for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.blueprints import BLUEPRINTS, blueprint_ids
from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.hosts import SegmentedHost, build_host, fault_mask, reset_parameters
from esper.population import GrowthStage, Population, build_mapping
from esper.population.layout import flatten_parameters
from esper.runtime.rng import generator

CNN_BLUEPRINTS = [blueprint_ids().index(name) for name in BLUEPRINTS["cnn"] if name != Blueprint.NOOP.name.lower()]
FAULTS = ("intact", "starved_1", "centre_tap_12")
NUM_SLOTS = 3

Site = tuple[int, int, int, BlendAlgorithm]
"""Environment, slot, blueprint, algorithm."""


def digits_host() -> SegmentedHost:
    return build_host(
        "cnn",
        in_channels=1,
        image_size=8,
        num_classes=10,
        widths=[8, 8, 8],
        kernel_sizes=[3, 3, 3],
        strides=[2, 1, 1],
        pools=[False, True, False],
        norm_groups=2,
        place_rows=[0],
    )


def births(host: SegmentedHost, environments: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Host parameters and which of them exist, of the given environment numbers."""
    values, live = [], []
    for environment in environments:
        reset_parameters(host.segments, generator("host", environment))
        mask = fault_mask(host, FAULTS[environment % len(FAULTS)])
        values.append(flatten_parameters(host.segments))
        live.append(torch.cat([mask[name].flatten() for name, _ in host.named_host_parameters()]))
    return torch.stack(values), torch.stack(live)


def populate(
    mapping: str,
    environments: Sequence[int],
    sites: Sequence[Site] = (),
    dtype: torch.dtype = torch.float32,
    autocast_dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> Population:
    """A population whose row i is environment number ``environments[i]``, with modules at the given sites."""
    host = digits_host()
    population = Population(
        host,
        host.slot_ids,
        len(environments),
        build_mapping(mapping),
        device=device,
        dtype=dtype,
        autocast_dtype=autocast_dtype,
    )
    population.reset(range(len(environments)), *births(host, environments))
    for environment, slot, blueprint, algorithm in sites:
        if environment in environments:
            row = list(environments).index(environment)
            population.germinate(row, slot, blueprint, algorithm, generator("module", environment, slot))
    return population


def batch(environments: Sequence[int], size: int = 16, step: int = 0) -> tuple[Tensor, Tensor]:
    """Each environment's own batch: ``[E, B, 1, 8, 8]`` and ``[E, B]``, in float64."""
    images, labels = [], []
    for environment in environments:
        stream = generator("batch", environment, step)
        images.append(torch.randn(size, 1, 8, 8, generator=stream, dtype=torch.float64))
        labels.append(torch.randint(10, (size,), generator=stream))
    return torch.stack(images), torch.stack(labels)


def pool(size: int = 120) -> tuple[Tensor, Tensor]:
    """Samples that all environments share, ``[N, 1, 8, 8]`` and ``[N]``."""
    stream = generator("pool")
    labels = torch.randint(10, (size,), generator=stream)
    # Something to learn: a blob whose place tells the class.
    images = 0.3 * torch.randn(size, 1, 8, 8, generator=stream)
    images[torch.arange(size), 0, labels % 5, labels // 2] += 3.0
    return images, labels


def orders(environments: Sequence[int], count: int, epoch: int = 0, size: int = 120) -> Tensor:
    """Data order of each environment, ``int64 [E, count]``."""
    return torch.stack(
        [torch.randint(size, (count,), generator=generator("order", number, epoch)) for number in environments]
    )


def nothing(num_envs: int) -> GrowthStage:
    """Growth stage without acting or developing modules."""
    empty = torch.zeros(num_envs, NUM_SLOTS, dtype=torch.bool)
    return GrowthStage(alpha=empty.double(), developing=empty, isolated=empty)


def random_growth(seed: int, num_envs: int) -> tuple[list[Site], GrowthStage]:
    """Any mix of blueprints, algorithms, alphas and stages: about two thirds of the slots hold a module."""
    stream = generator("mix", seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=stream))

    sites: list[Site] = []
    alpha = torch.zeros(num_envs, NUM_SLOTS, dtype=torch.float64)
    developing = torch.zeros(num_envs, NUM_SLOTS, dtype=torch.bool)
    isolated = developing.clone()
    for environment in range(num_envs):
        for slot in range(NUM_SLOTS):
            kind = draw(6)
            if kind >= 4:
                continue
            blueprint = CNN_BLUEPRINTS[draw(len(CNN_BLUEPRINTS))]
            sites.append((environment, slot, blueprint, BlendAlgorithm(draw(3))))
            developing[environment, slot] = kind < 2
            alpha[environment, slot] = 0.0 if kind < 2 else (draw(10) + 1) / 10
            isolated[environment, slot] = kind == 3
    return sites, GrowthStage(alpha=alpha, developing=developing, isolated=isolated)


def rows_of(growth: GrowthStage, rows: slice | list[int]) -> GrowthStage:
    """The growth stage of some environments."""
    return GrowthStage(alpha=growth.alpha[rows], developing=growth.developing[rows], isolated=growth.isolated[rows])


def stir(population: Population, scale: float = 0.3) -> None:
    """Move all module parameters off their birth values, by amounts that depend on environment and slot only."""
    for (slot, blueprint), stack in population.modules.items():
        for row, environment in enumerate(stack.environments):
            stream = generator("stir", environment, slot, blueprint)
            noise = torch.randn(stack.values.shape[1], generator=stream, dtype=torch.float64)
            with torch.no_grad():
                stack.values[row] += scale * noise.to(stack.values)
