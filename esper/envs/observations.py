"""Observations of a controller: one row of numbers per environment (v3), blueprint indices and masks.

Axis legend: E = environments, S = slots, D = features (:mod:`esper.envs.features`), F = features of a slot.

The arithmetic uses numpy on the tensors' own memory: for arrays this small its calls cost a third of torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.envs.features import (
    BASE_HIGH,
    BASE_INDEX,
    BASE_LOW,
    BOUND,
    HISTORY,
    NUM_BASE_FEATURES,
    NUM_SLOT_FEATURES,
    PRICE_SCALE,
    SLOT_HIGH,
    SLOT_INDEX,
    SLOT_LOW,
    num_features,
)
from esper.envs.history import HostHistory
from esper.envs.scale_free import rescale_base, rescale_probes, rescale_slots
from esper.growth import NUM_STAGES, AlphaMode, SlotState, Stage
from esper.growth.actions import NUM_OPS, ActionMasks, BlendAlgorithm

Array = NDArray[np.float32]

LOSS_SCALE = log(11)
PLATEAU_EPOCHS = 20
TIME_EPOCHS = 8

_MODE_VALUES = {AlphaMode.HOLD: 0.0, AlphaMode.RAMP: 0.5, AlphaMode.STEP: 1.0}
_ALGORITHM_VALUES = {BlendAlgorithm.ADD: 0.0, BlendAlgorithm.MULTIPLY: 0.5, BlendAlgorithm.GATE: 1.0}
_OP_ROWS = np.eye(NUM_OPS, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of one step.

    Attributes:
        features: ``float32 [E, D]`` in [-2, 2].
        blueprint_index: ``int64 [E, S]``, -1 where there is no module.
        masks: legal choices.
    """

    features: Tensor
    blueprint_index: Tensor
    masks: ActionMasks

    def to(self, device: torch.device) -> Observation:
        """Copy the observation from the CPU to a device, without waiting for it."""
        return Observation(
            features=self.features.to(device, non_blocking=True),
            blueprint_index=self.blueprint_index.to(device, non_blocking=True),
            masks=self.masks.to(device),
        )


def observe(
    history: HostHistory,
    state: SlotState,
    *,
    num_epochs: int,
    param_budget: Tensor,
    min_training_epochs: int,
    contribution_decay: float,
    probes: Tensor | None = None,
    rents: Tensor | None = None,
    scale_free: bool = False,
    slot_probes: Sequence[str] = (),
) -> tuple[Tensor, Tensor]:
    """Compute the features of all environments.

    Args:
        num_epochs: length of an episode in host epochs.
        param_budget: ``[E]``, added parameters at which that feature is 1; at least 1.
        min_training_epochs: dwell time of modules in TRAINING, from which a feature counts down.
        contribution_decay: factor on freshness per epoch since a contribution was measured.
        probes: ``float [E, S, num_probes]``, slot probes; ``None`` if they are not observed. Clipped to [-2, 2]; 0
            where not measured (NaN).
        rents: ``float64 [E]``, points that doubling the host must earn; ``None`` if the price is not observed.
        scale_free: leave out the scale of losses, gradients and epochs (:mod:`esper.envs.scale_free`).
        slot_probes: names of the probes, for ``scale_free``.

    Returns:
        ``float32 [E, D]`` and ``int64 [E, S]``, sharing nothing with the arguments.
    """
    num_envs, num_slots = state.stage.shape
    num_probes = 0 if probes is None else probes.shape[-1]
    features = torch.empty(num_envs, num_features(num_slots, num_probes, rents is not None))
    rows: Array = features.numpy()
    base, rest = rows[:, :NUM_BASE_FEATURES], rows[:, NUM_BASE_FEATURES:]
    width = NUM_SLOT_FEATURES * num_slots
    slots = rest[:, :width].reshape(num_envs, num_slots, NUM_SLOT_FEATURES)  # a view: the last axis is only split
    with np.errstate(all="ignore"):  # NaN is "not measured" and infinity saturates
        _write_slots(slots, state, num_epochs, min_training_epochs, contribution_decay)
        _write_base(base, slots, history, state, num_epochs, param_budget)
        if scale_free:
            rescale_slots(slots, state, num_epochs, contribution_decay)
            rescale_base(base, history, num_epochs)
        _bound(slots, SLOT_LOW, SLOT_HIGH)
        _bound(base, BASE_LOW, BASE_HIGH)
        slots[state.stage.numpy() == Stage.DORMANT] = 0
        if probes is not None:
            measured = rest[:, width : width + num_slots * num_probes]
            measured[...] = probes.reshape(num_envs, -1).numpy()
            if scale_free:
                rescale_probes(measured.reshape(num_envs, num_slots, num_probes), slot_probes)
            _bound(measured, -BOUND, BOUND)
        if rents is not None:
            rest[:, -1] = np.log2(rents.numpy()) / PRICE_SCALE
            _bound(rest[:, -1], -BOUND, BOUND)
    return features, state.blueprint.clone()


def _bound(values: Array, low: Array | float, high: Array | float) -> None:
    """Replace NaN by 0 and clip to the range, in place."""
    np.copyto(values, 0, where=np.isnan(values))
    np.maximum(values, low, out=values)
    np.minimum(values, high, out=values)


def _discrete_table() -> Array:
    """Return flags, one-hots and enum values of a slot by stage, mode and algorithm, ``float32 [10, 3, 3, F]``."""
    table = np.zeros((NUM_STAGES, len(AlphaMode), len(BlendAlgorithm), NUM_SLOT_FEATURES), dtype=np.float32)
    table[..., SLOT_INDEX["occupied"]] = 1
    for stage in Stage:
        table[stage, :, :, SLOT_INDEX[f"stage_{stage.name.lower()}"]] = 1
    for mode, value in _MODE_VALUES.items():
        table[:, mode, :, SLOT_INDEX["alpha_mode"]] = value
    for algorithm, value in _ALGORITHM_VALUES.items():
        table[:, :, algorithm, SLOT_INDEX["algorithm"]] = value
    return table


_DISCRETE = _discrete_table()


def _write_slots(out: Array, state: SlotState, num_epochs: int, min_training_epochs: int, decay: float) -> None:
    """Fill ``out: float32 [E, S, F]``, before clipping and before empty slots are zeroed."""
    at = SLOT_INDEX
    stage = state.stage.numpy()
    out[...] = _DISCRETE[stage, state.alpha_mode.numpy(), state.algorithm.numpy()]

    alpha = state.alpha.numpy()
    ramp = state.ramp_duration.numpy() - state.ramp_elapsed.numpy()
    dwell = min_training_epochs - state.dwell.numpy()
    out[..., at["alpha"]] = alpha
    out[..., at["alpha_target"]] = state.alpha_target.numpy()
    out[..., at["alpha_velocity"]] = state.alpha_velocity.numpy()
    out[..., at["time_to_target"]] = np.where(stage == Stage.TRAINING, dwell, ramp) / TIME_EPOCHS
    passed = alpha.cumsum(1)  # canonical order runs along the depth
    others = max(1, alpha.shape[1] - 1)
    out[..., at["alpha_upstream"]] = (passed - alpha) / others
    out[..., at["alpha_downstream"]] = (passed[:, -1:] - passed) / others

    contribution = state.contribution.numpy()
    out[..., at["contribution"]] = _points(contribution)
    out[..., at["contribution_velocity"]] = _points(contribution - state.previous_contribution.numpy())
    out[..., at["freshness"]] = np.where(np.isnan(contribution), 0.0, decay ** state.contribution_age.numpy())
    out[..., at["interaction"]] = state.interaction.numpy() / 10
    out[..., at["boost"]] = state.boost.numpy() / 5

    previous_health = state.previous_health.numpy()
    out[..., at["epochs_in_stage"]] = state.epochs_in_stage.numpy() / num_epochs
    out[..., at["gradient_norm"]] = state.gradient_norm.numpy() / 10
    out[..., at["gradient_health"]] = state.gradient_health.numpy()
    out[..., at["previous_health"]] = np.where(np.isnan(previous_health), 1.0, previous_health)
    out[..., at["vanishing"]] = state.vanishing.numpy()
    out[..., at["exploding"]] = state.exploding.numpy()


def _points(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale contributions, which range from tenths of a point to 70 points, on a symmetric log scale, 1 at 10
    points.
    """
    return np.copysign(np.log1p(np.abs(points)) / LOSS_SCALE, points)


def _write_base(
    out: Array, slots: Array, history: HostHistory, state: SlotState, num_epochs: int, param_budget: Tensor
) -> None:
    """Fill ``out: float32 [E, 31]``, before clipping; ``slots`` holds the discrete slot features."""
    at = BASE_INDEX
    num_slots = slots.shape[1]
    losses, accuracies = history.losses.numpy(), history.accuracies.numpy()
    log_losses = np.log1p(losses) / LOSS_SCALE
    first_loss, first_accuracy = at[f"val_loss_{HISTORY - 1}_ago"], at[f"val_accuracy_{HISTORY - 1}_ago"]
    out[:, at["epoch"]] = history.epoch.numpy() / num_epochs
    out[:, at["val_loss"]] = log_losses[:, -1]
    out[:, at["val_loss_delta"]] = (losses[:, -1] - losses[:, -2]) / 2
    out[:, at["val_accuracy"]] = accuracies[:, -1]
    out[:, at["val_accuracy_delta"]] = (accuracies[:, -1] - accuracies[:, -2]) * (100 / 10)
    out[:, at["plateau_epochs"]] = history.plateau_epochs.numpy() / PLATEAU_EPOCHS
    out[:, at["stabilised"]] = history.stabilised.numpy()
    out[:, first_loss : first_loss + HISTORY] = log_losses
    out[:, first_accuracy : first_accuracy + HISTORY] = accuracies
    out[:, at["best_accuracy"]] = history.best_accuracy.numpy()
    out[:, at["best_loss"]] = np.log1p(history.best_loss.numpy()) / LOSS_SCALE

    added = np.add.reduce(state.num_parameters.numpy(), axis=1)
    out[:, at["added_params"]] = np.log1p(added) / np.log1p(param_budget.numpy())
    out[:, at["live_share"]] = np.add.reduce(state.live.numpy(), axis=1, dtype=np.int64) / num_slots
    training, holding = SLOT_INDEX["stage_training"], SLOT_INDEX["stage_holding"]
    stages = slots[..., training : holding + 1]  # TRAINING, BLENDING, HOLDING
    out[:, at["training_share"] : at["holding_share"] + 1] = np.add.reduce(stages, axis=1) / num_slots
    out[:, at["last_success"]] = history.last_success.numpy()
    out[:, at["last_op_wait"] : at["last_op_wait"] + NUM_OPS] = _OP_ROWS[history.last_op.numpy()]
