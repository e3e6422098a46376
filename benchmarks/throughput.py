"""Epochs of hosts with no, one and three modules, compared with bare hosts and with the same grown networks.

Axis legend: E = environments.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bare import BareTraining, bare_network
from benchmarks.epochs import Epoch, Growing, each, germinate, stage_of, static_network
from benchmarks.records import Record
from benchmarks.scale import Scale
from benchmarks.settings import Setting, colour, digits
from benchmarks.timing import interleave, records
from esper.population import Population

SECTION = "throughput"
FLOOR = "bare host"
GROWN = "same network, static"


@dataclass(frozen=True, slots=True)
class Growth:
    """A workload: the slots of every host that hold conv_light, and their alpha."""

    name: str
    slots: tuple[int, ...]
    alpha: float


WORKLOADS = (
    Growth("no modules", (), 1.0),
    Growth("one conv_light blended", (1,), 1.0),
    Growth("three conv_light blended", (0, 1, 2), 1.0),
    Growth("three conv_light half blended", (0, 1, 2), 0.5),
)
FEW = 4
"""Largest number of hosts for which half-blended modules and slot probes are timed too."""


def run(scale: Scale) -> list[Record]:
    """Time hosts with and without modules, in milliseconds per environment and epoch."""
    found = []
    both = (digits(scale.preset), scale.digits), (colour(scale.image_size, scale.image_batch), scale.colour)
    for setting, sizes in both:
        for num_envs, rounds in sizes:
            for growth in WORKLOADS:
                if growth.alpha < 1.0 and num_envs > FEW:
                    continue
                contenders = _contenders(setting, num_envs, growth)
                # Few rounds of many hosts need no warm-up: all but the first host run warm.
                seconds = interleave(contenders, rounds, warmup=int(num_envs <= FEW), clock=scale.clock)
                found += records(
                    seconds,
                    section=SECTION,
                    workload=f"{setting.name}: {growth.name}",
                    hosts=num_envs,
                    floor=FLOOR,
                    grown=GROWN if growth.slots else None,
                    per=num_envs,
                    samples=setting.samples,
                )
    return found


def _contenders(setting: Setting, num_envs: int, growth: Growth) -> dict[str, Epoch]:
    contenders = {FLOOR: each([BareTraining(bare_network(setting.host), setting.loader) for _ in range(num_envs)])}
    for mapping in setting.mappings:
        population = setting.population(num_envs, mapping)
        germinate(population, growth.slots)
        if growth.slots and GROWN not in contenders:
            networks = [static_network(population, env, growth.alpha) for env in range(num_envs)]
            contenders[GROWN] = each([BareTraining(network, setting.loader) for network in networks])
        contenders[f"Esper, {mapping}"] = _epoch(setting, population, growth)
    if not growth.slots and num_envs <= FEW:
        mapping = setting.mappings[0]
        population = setting.population(num_envs, mapping)
        contenders[f"Esper, {mapping}, slot probes"] = _epoch(setting, population, growth, probe=True)
    return contenders


def _epoch(setting: Setting, population: Population, growth: Growth, probe: bool = False) -> Epoch:
    growing = Growing(setting.loader, population, setting.instances(population.num_envs))
    stage = stage_of(population, growth.alpha)
    return lambda: growing.epoch(stage, probe=probe, all_off=len(growth.slots) > 1)
