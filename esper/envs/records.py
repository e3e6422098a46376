"""Records of the growth environment: its settings, steps and episodes.

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
from esper.growth import Applied, Incubation, SlotState, Transitions
from esper.runtime.options import Rent

PlantedModule: TypeAlias = tuple[int, int]
"""Slot and blueprint of a module that is part of the host from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """Numeric settings of the environment.

    Attributes:
        incubation: ``auxiliary`` or ``straight_through``.
        incubate_every: training steps from one in which developing modules learn to the next.
        isolate_until_fossilized: keep gradients through blended modules out of the host until they are FOSSILIZED.
        contributions_every: epochs between measurements of contributions and previews.
        pairs_every: epochs between measurements of pair interactions of three modules or more; 0 is never.
        shapley_permutations: orders averaged into Shapley values at the end of an episode; 0 is never.
        max_configurations: largest number of configurations for pairs or Shapley values, per environment.
        gamma: discount under which rewards telescope.
        rent_weight, rent_kind: see :func:`esper.envs.rewards.rent`; an instance may have a weight of its own.
        compute_weight: points for training FLOPs; see :func:`esper.envs.rewards.compute_component`.
        stage_shaping: points per stage of the furthest module; see :func:`esper.envs.rewards.furthest_stage`.
        crash_penalty: points.
        reward_scale: fixed factor on rewards.
        param_budget: added parameters, as a multiple of the host's, at which that feature is 1.
        slot_probes: slot probes at the end of observations.
        probe_every: epochs between their measurements.
        price: observe the price of size, after the slot probes.
        scale_free: observe losses, gradients and times without their scale.
        contribution_decay: factor on freshness per epoch since a contribution was measured.
    """

    incubation: Incubation
    incubate_every: int
    isolate_until_fossilized: bool
    contributions_every: int
    pairs_every: int
    shapley_permutations: int
    max_configurations: int
    gamma: float
    rent_weight: float
    rent_kind: Rent
    compute_weight: float
    stage_shaping: float
    crash_penalty: float
    reward_scale: float
    param_budget: float
    slot_probes: tuple[str, ...]
    probe_every: int
    price: bool
    scale_free: bool
    contribution_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """Record of an ended episode.

    Attributes:
        environment: index of the environment.
        instance: instance that was grown.
        num_epochs: length in host epochs.
        episode_return: sum of unscaled rewards discounted by gamma, in points.
        val_accuracy, test_accuracy: of the final network, only FOSSILIZED modules on; test is ``None`` unless
            requested.
        val_bits, test_bits: the final network's loss in bits per byte, ``None`` unless the task is text.
        added_parameters: parameters of the FOSSILIZED modules.
        num_fossilized: number of FOSSILIZED modules.
        kept: slot id and blueprint of each FOSSILIZED module, in canonical order of slots.
        num_germinated: number of modules ever created in the host, planted ones included.
        relative_flops: multiply-adds spent on training host and modules
            (:func:`esper.population.training_multiply_adds`), relative to the host alone for as many epochs.
        test_return: return if scores were those of test images; that on val images where the host crashed; ``None``
            unless test is requested, for reward families that compare a host with itself, and where the twin comes
            from an older checkpoint.
        crashed: true if the host crashed (:mod:`esper.envs.breakdowns`), and is scored as guessing.
        shapley: Shapley values in points of the modules in the final host, by slot id; empty unless requested. They sum
            to the score with all modules on minus that of the bare host.
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
    test_return: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one step of all environments.

    Attributes:
        observation: the true next one, before any reset.
        reward: ``float32 [E]``, scaled.
        components: named parts of the unscaled reward, ``float64 [E]`` each.
        terminated: ``bool [E]``, the episode is over (its last epoch, or a crash). A full episode is a terminal state,
            so nothing is ever truncated.
        stages_before: ``int64 [E, S]`` before the action.
        blueprints: ``int64 [E, S]`` in the slot before or after the action, -1 for none.
        applied, transitions: effects of the action and of the rules.
        epochs: ``int64 [E]``, host epoch just trained, from 1.
        accuracy: ``float64 [E]`` val accuracy at the present alphas.
        breakdown: ``int64 [E]``, a :class:`~esper.envs.breakdowns.Breakdown`: cause of crashes in this epoch.
        episodes: records of the episodes that ended.
        host_seconds: time spent training and validating hosts.
        skipped_steps: optimizer steps of hosts and modules that fp16 loss scaling skipped.
        non_finite: number of hosts and modules with a gradient that was not finite.
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
    """Everything that a controller may read: the environment's own tensors, which it must not change.

    Attributes:
        observation, state, history: features, slots and histories of the hosts, of all E environments.
        slot_ids: slot ids in canonical order.
        slot_probes: names of the slot probes in observations.
        rents: ``float64 [E]``, points that doubling each host must earn; ``None`` if the price is not observed.
    """

    observation: Observation
    state: SlotState
    history: HostHistory
    slot_ids: tuple[str, ...]
    slot_probes: tuple[str, ...]
    rents: Tensor | None = None
