"""Memory of seed modules as a function of the number of live modules.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from benchmarks.hosts import Growth, grown_population
from benchmarks.records import Record, bytes_held
from benchmarks.scale import Scale, experiment_of
from esper.growth.actions import BlendAlgorithm
from esper.population import Population

SECTION = "memory"
NUMBERS_PER_PARAMETER = 3
"""Numbers stored per parameter: its value and two Adam moments."""

ITEM_BYTES = 4


def run(scale: Scale) -> list[Record]:
    """Measure the memory of modules and their optimizer state, in bytes, as modules are germinated and then culled.

    Ratios compare with the minimum for the live modules: three numbers per parameter, one step count per module and per
    gate.
    """
    experiment = experiment_of(scale.preset)
    num_envs, num_slots = scale.hosts[-1][0], len(experiment.slot_ids)
    instances = experiment.pool("train", num_envs).instances
    found = []
    for num_modules in range(num_slots + 1):
        population = grown_population(experiment, instances, Growth("", num_modules, 0.0), "grouped")
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
    """Count the bytes of storage behind all seed modules, gates and their optimizer state."""
    _, *stacks = population.stacks()  # the first one is the hosts'
    held = {
        storage.data_ptr(): storage.nbytes()
        for stack in stacks
        for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps, stack.live)
        if tensor is not None
        for storage in [tensor.untyped_storage()]
    }
    return sum(held.values())
