"""Cost of observations and masks compared with one training step of one bare host.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.bare import BareTraining, bare_network
from benchmarks.records import Record
from benchmarks.scale import Scale, experiment_of
from benchmarks.timing import interleave, records
from esper.blueprints import blueprint_ids
from esper.envs.history import HostHistory
from esper.envs.observations import observe
from esper.experiment.acting import growth_rules
from esper.growth import NUM_STAGES, GrowthRules, SlotState, legal
from esper.population import NUM_PROBES

SECTION = "observation"
FLOOR = "bare training step"

BLOCK = 20
"""Number of calls timed together, because single calls would run with caches left by the previous contender."""


def run(scale: Scale) -> list[Record]:
    """Return one record per shape for the observation, the masks, and a bare host's training step."""
    experiment = experiment_of(scale.preset)
    bare = BareTraining(bare_network(experiment.host), experiment.loader)
    batch = torch.arange(experiment.loader.training.batch_size)
    found = []
    for num_envs, num_slots in scale.shapes:
        rules = replace(growth_rules(experiment.config), max_developing=num_slots, max_seeds=num_slots)
        observation, masks = _calls(num_envs, num_slots, rules)
        calls: dict[str, Callable[[], object]] = {
            FLOOR: lambda: bare.step(batch),
            "observation": observation,
            "masks": masks,
        }
        contenders = {name: _block(call) for name, call in calls.items()}
        rounds = max(2, scale.calls // BLOCK)
        blocks = interleave(contenders, rounds, warmup=1, clock=scale.clock)
        seconds = {name: [block / BLOCK for block in times] for name, times in blocks.items()}
        workload = f"{num_envs} x {num_slots} slots"
        found += records(seconds, section=SECTION, workload=workload, hosts=num_envs, floor=FLOOR)
    return found


def _block(call: Callable[[], object]) -> Callable[[], None]:
    def block() -> None:
        for _ in range(BLOCK):
            call()

    return block


def _calls(num_envs: int, num_slots: int, rules: GrowthRules) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that compute the observation and the masks of slots in all stages."""
    shape = num_envs, num_slots
    state, history = SlotState.empty(*shape), HostHistory.empty(num_envs)
    cells = torch.arange(num_envs * num_slots).view(shape)
    state.stage = 1 + cells % (NUM_STAGES - 1)
    state.blueprint = torch.where(state.present, cells % len(blueprint_ids()), -1)
    probes, budget = torch.rand(*shape, NUM_PROBES), torch.full((num_envs,), 1000.0)
    compatible = torch.ones(num_slots, len(blueprint_ids()), dtype=torch.bool)

    def observation() -> object:
        return observe(
            history,
            state,
            num_epochs=25,
            param_budget=budget,
            min_training_epochs=rules.min_training_epochs,
            contribution_decay=1.0,
            probes=probes,
        )

    return observation, lambda: legal(state, compatible, rules)
