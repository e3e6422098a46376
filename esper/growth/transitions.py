"""Automatic changes: alphas and clocks advance with every epoch, and stages change when their gate passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.growth.blending import curve as curve_value
from esper.growth.gates import GateResults, evaluate_gates
from esper.growth.stages import AlphaMode, Gate, GrowthRules, Stage
from esper.growth.state import SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """The automatic stage changes of one epoch, at most one per slot.

    Attributes:
        before: ``int64 [E, S]``, stages before.
        after: ``int64 [E, S]``, stages after.
        removed: ``bool [E, S]``, a fade ended: the module must be freed now.
        gates: evaluated gates.
    """

    before: Tensor
    after: Tensor
    removed: Tensor
    gates: GateResults


def tick(state: SlotState) -> None:
    """Advance pending ramps by one epoch, then every clock. Called once per epoch, before it is trained.

    A ramp ends at exactly its target.
    """
    pending = state.alpha_mode != AlphaMode.HOLD
    elapsed = torch.where(pending, state.ramp_elapsed + 1, state.ramp_elapsed).minimum(state.ramp_duration)
    ended = pending & (elapsed >= state.ramp_duration)
    progress = elapsed.double() / state.ramp_duration.clamp(min=1)
    travelled = curve_value(progress, state.curve)
    on_ramp = state.alpha_start + (state.alpha_target - state.alpha_start) * travelled
    alpha = torch.where(ended, state.alpha_target, torch.where(pending, on_ramp, state.alpha))
    state.alpha_velocity = alpha - state.alpha
    state.alpha = alpha
    state.ramp_elapsed = elapsed
    state.alpha_mode = state.alpha_mode.masked_fill(ended, AlphaMode.HOLD)

    state.epochs_in_stage = state.epochs_in_stage + 1
    state.age = state.age + state.present
    state.dwell = state.dwell + (state.stage == Stage.TRAINING)
    state.contribution_age = state.contribution_age + ~state.contribution.isnan()


def transition(state: SlotState, rules: GrowthRules) -> Transitions:
    """Move every slot by at most one stage, after the epoch was trained and measured."""
    before = state.stage
    removed = state.fading & (state.alpha == 0)
    state.clear(removed)
    state.assign(removed, stage=Stage.CULLED)

    # After the removals, so that a place freed in this epoch can be taken in it.
    faced = evaluate_gates(state, rules)
    gates = faced.only(faced.gate != Gate.G5)  # FOSSILIZED is entered by an action only
    state.assign(gates.passed(Gate.G1), stage=Stage.TRAINING)
    blending = gates.passed(Gate.G2)
    state.assign(
        blending,
        stage=Stage.BLENDING,
        alpha_mode=AlphaMode.RAMP,
        alpha_start=0.0,
        ramp_elapsed=0,
        ramp_duration=state.tempo_epochs,
        measured_since_ramp=False,
    )
    state.assign(gates.passed(Gate.G3), stage=Stage.HOLDING)
    _recover(state, before, rules)
    state.epochs_in_stage = state.epochs_in_stage.masked_fill(state.stage != before, 0)
    return Transitions(before=before, after=state.stage, removed=removed, gates=gates)


def _recover(state: SlotState, before: Tensor, rules: GrowthRules) -> None:
    """Advance slots from CULLED through EMBARGOED and RESETTING back to DORMANT."""
    rested = (before == Stage.EMBARGOED) & (state.epochs_in_stage >= rules.embargo_epochs)
    renewed = (before == Stage.RESETTING) & (state.epochs_in_stage >= rules.resetting_epochs)
    state.assign(before == Stage.CULLED, stage=Stage.EMBARGOED)
    state.assign(rested, stage=Stage.RESETTING)
    state.clear(renewed)
