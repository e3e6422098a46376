"""What the growth environment takes and gives: plain numbers in, records of steps and episodes out.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from esper.envs.history import HostHistory
from esper.envs.instances import Instance
from esper.envs.observations import Observation
from esper.growth import Applied, SlotState, Transitions
from esper.population import PROBE_NAMES

PlantedModule: TypeAlias = tuple[int, int]
"""Slot and blueprint of a module that is there from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """Plain numbers of the environment.

    Attributes:
        incubation: ``auxiliary`` or ``straight_through``.
        isolate_until_fossilized: keep gradients through blended modules out of the host until they are FOSSILIZED.
        contributions_every: epochs between measurements of contributions and previews.
        pairs_every: epochs between measurements of pair interactions of three modules or more; 0 is never.
        shapley_permutations: orders over which Shapley values are taken at the end of an episode; 0 is never.
        max_configurations: most configurations that pairs or Shapley values may ask for, per environment.
        gamma: discount under which rewards telescope.
        rent_weight, rent_kind: see :func:`esper.envs.rewards.rent`.
        stage_shaping: points per stage of the furthest module; see :func:`esper.envs.rewards.furthest_stage`.
        crash_penalty: points.
        reward_scale: fixed factor on rewards.
        param_budget: added parameters, as a multiple of the host's, at which that feature is 1.
        slot_probes: which slot probes observations end with.
        contribution_decay: freshness lost per epoch since a contribution was measured.
    """

    incubation: str = "auxiliary"
    isolate_until_fossilized: bool = False
    contributions_every: int = 1
    pairs_every: int = 5
    shapley_permutations: int = 0
    max_configurations: int = 64
    gamma: float = 1.0
    rent_weight: float = 3.0
    rent_kind: str = "linear"
    stage_shaping: float = 0.0
    crash_penalty: float = 10.0
    reward_scale: float = 0.1
    param_budget: float = 4.0
    slot_probes: tuple[str, ...] = PROBE_NAMES
    contribution_decay: float = 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """How an episode ended.

    Attributes:
        environment: which.
        instance: what it grew.
        num_epochs: host epochs that it lasted.
        episode_return: sum of unscaled rewards discounted by gamma, in points.
        val_accuracy, test_accuracy: of the final network, only FOSSILIZED modules on; test is ``None`` unless asked
            for.
        val_bits, test_bits: its loss in bits per byte, ``None`` where the task is not text.
        added_parameters: of the FOSSILIZED modules.
        num_fossilized: how many.
        kept: slot id and blueprint of each FOSSILIZED module, in canonical order of slots.
        num_germinated: modules that were ever put into the host, planted ones included.
        relative_flops: multiply-adds spent on training host and modules
            (:func:`esper.population.training_multiply_adds`), as a multiple of what the host alone takes for as many
            epochs.
        crashed: the host broke down (:mod:`esper.envs.breakdowns`), and counts as guessing.
        shapley: points that each module is worth in the host as it stands at the end, by slot id; empty if not asked
            for. They sum to the score with all modules on minus that of the bare host.
    """

    environment: int
    instance: Instance
    num_epochs: int
    episode_return: float
    val_accuracy: float
    test_accuracy: float | None
    val_bits: float | None
    test_bits: float | None
    added_parameters: int
    num_fossilized: int
    kept: tuple[tuple[str, str], ...]
    num_germinated: int
    relative_flops: float
    crashed: bool
    shapley: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of all environments.

    Attributes:
        observation: the true next one, before any reset.
        reward: ``float32 [E]``, scaled.
        components: named parts of the unscaled reward, ``float64 [E]`` each.
        terminated: ``bool [E]``, the episode is over (its last epoch, or a crash). A full episode is a terminal state,
            so nothing is ever truncated.
        stages_before: ``int64 [E, S]`` before the action.
        blueprints: ``int64 [E, S]`` that the slot held before or after the action, -1 for none.
        applied, transitions: what the action and the rules did.
        epochs: ``int64 [E]``, host epoch just trained, from 1.
        accuracy: ``float64 [E]`` val accuracy at the present alphas.
        breakdown: ``int64 [E]``, a :class:`~esper.envs.breakdowns.Breakdown`: why hosts crashed in this epoch.
        episodes: records of the episodes that ended.
        host_seconds: time spent training and validating hosts.
        skipped_steps: optimizer steps of hosts and modules that fp16 loss scaling skipped.
        non_finite: hosts and modules that had a gradient that was not finite.
    """

    observation: Observation
    reward: Tensor
    components: dict[str, Tensor]
    terminated: Tensor
    stages_before: Tensor
    blueprints: Tensor
    applied: Applied
    transitions: Transitions
    epochs: Tensor
    accuracy: Tensor
    breakdown: Tensor
    episodes: tuple[EpisodeRecord, ...]
    host_seconds: float
    skipped_steps: int
    non_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvView:
    """What a controller may look at. The state is the environment's own: read only.

    Attributes:
        observation, state, history: of all environments.
        slot_ids: in canonical order.
        slot_probes: names of the slot probes that observations end with.
    """

    observation: Observation
    state: SlotState
    history: HostHistory
    slot_ids: tuple[str, ...]
    slot_probes: tuple[str, ...]
