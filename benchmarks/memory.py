"""Memory that seed modules hold, against how many of them live.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from benchmarks.hosts import Growth, grown_population
from benchmarks.records import Record, bytes_held
from benchmarks.scale import Scale, laboratory
from esper.growth.actions import BlendAlgorithm
from esper.population import Population

SECTION = "memory"
NUMBERS_PER_PARAMETER = 3
"""Its value and two Adam moments."""

ITEM_BYTES = 4


def run(scale: Scale) -> list[Record]:
    """Bytes that modules and their optimizer state hold, with more and more of them, and while they are culled.

    The ratio is to what the live modules need: three numbers per parameter, one step count per module and per gate.
    """
    lab = laboratory(scale.preset)
    num_envs, num_slots = scale.hosts[-1][0], len(lab.slot_ids)
    instances = lab.pool("train", num_envs).instances
    found = []
    for num_modules in range(num_slots + 1):
        population = grown_population(lab, instances, Growth("", num_modules, 0.0), "grouped")
        found.append(_record(population, "germinated"))
    for slot in range(num_slots):
        # Every other environment first, so that rows are taken out of the middle of stacks.
        for env in [*range(0, num_envs, 2), *range(1, num_envs, 2)]:
            population.remove(env, slot)
        found.append(_record(population, "culled"))
    return found


def _record(population: Population, event: str) -> Record:
    live = population.blueprint >= 0
    gates = live & (population.algorithm == BlendAlgorithm.GATE)
    owners = int(live.sum()) + int(gates.sum())
    needed = ITEM_BYTES * (NUMBERS_PER_PARAMETER * int(population.num_parameters().sum()) + owners)
    held = module_bytes(population)
    workload = f"{int(live.sum())} live modules"
    return bytes_held(SECTION, workload, population.num_envs, event, held, needed)


def module_bytes(population: Population) -> int:
    """Bytes of the storage behind all seed modules, gates and their optimizer state."""
    _, *stacks = population.stacks()  # the first one is the hosts'
    held = {
        storage.data_ptr(): storage.nbytes()
        for stack in stacks
        for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps, stack.live)
        if tensor is not None
        for storage in [tensor.untyped_storage()]
    }
    return sum(held.values())
