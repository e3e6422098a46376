"""Execution of one action per environment, for all environments at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from esper.growth.actions import (
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    NUM_HEADS,
    OP_CULL,
    OP_EXTEND,
    OP_FOSSILIZE,
    OP_GERMINATE,
    OP_SET_ALPHA_TARGET,
    OP_WAIT,
    STYLE_ALGORITHMS,
    STYLE_CURVES,
    TEMPO_EPOCHS,
    ActionMasks,
    AlphaSpeed,
    BlendAlgorithm,
    Head,
)
from esper.growth.gates import NO_GATE, GateResults, evaluate_gates
from esper.growth.legality import legal, permitted
from esper.growth.stages import AlphaMode, Gate, GrowthRules, Reason, Stage
from esper.growth.state import SlotState

_ALGORITHM = torch.tensor([int(algorithm) for algorithm in STYLE_ALGORITHMS])
_CURVE = torch.tensor([int(curve) for curve in STYLE_CURVES])
_TEMPO = torch.tensor(TEMPO_EPOCHS)
_TARGET = torch.tensor(ALPHA_TARGETS, dtype=torch.float64)
_SPEED = torch.tensor(ALPHA_SPEED_EPOCHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Effects of an action.

    Attributes:
        success: ``bool [E]``, the action was legal and took effect; always true for WAIT.
        germinated: ``bool [E, S]``, a module must be created now.
        removed: ``bool [E, S]``, the module must be freed now.
        restyled: ``bool [E, S]``, the blend algorithm of a present module changed.
        fossilized: ``bool [E, S]``, the module became part of the host.
        gates: evaluated gates: G0 for GERMINATE, G5 for FOSSILIZE.
    """

    success: Tensor
    germinated: Tensor
    removed: Tensor
    restyled: Tensor
    fossilized: Tensor
    gates: GateResults


def apply_actions(state: SlotState, actions: Tensor, compatible: Tensor, rules: GrowthRules) -> Applied:
    """Apply one action per environment to ``state``. An illegal action changes nothing.

    Args:
        actions: ``int64 [E, 8]`` in head order, every index within its head.
        compatible: ``bool [S, B]`` or ``[E, S, B]``, blueprints that fit each place.
    """
    assert actions.shape == (state.num_envs, NUM_HEADS), f"actions have shape {tuple(actions.shape)}"
    op, slot = actions[:, Head.OP], actions[:, Head.SLOT]
    if bool((op == OP_WAIT).all()):
        return _nothing(state)
    masks = legal(state, compatible, rules)
    success = permitted(masks, actions)
    named = one_hot(slot, state.num_slots).bool()  # [E, S]
    gates = _gate_results(state, named, op, masks, success, rules)

    def where(which: int) -> Tensor:
        return named & (success & (op == which))[:, None]

    germinated, fossilized = where(OP_GERMINATE), where(OP_FOSSILIZE)
    _germinate(state, germinated, actions)
    removed = _cull(state, where(OP_CULL), actions)
    restyled = _set_alpha_target(state, where(OP_SET_ALPHA_TARGET), actions)
    state.assign(fossilized, stage=Stage.FOSSILIZED, epochs_in_stage=0)
    state.assign(where(OP_EXTEND), dwell=0)
    return Applied(
        success=success,
        germinated=germinated,
        removed=removed,
        restyled=restyled,
        fossilized=fossilized,
        gates=gates,
    )


def _nothing(state: SlotState) -> Applied:
    """Return the effects of WAIT everywhere, which needs no rule."""
    none = torch.zeros_like(state.fading)
    return Applied(
        success=torch.ones(state.num_envs, dtype=torch.bool),
        germinated=none,
        removed=none,
        restyled=none,
        fossilized=none,
        gates=GateResults(
            gate=torch.full_like(state.stage, NO_GATE), reason=torch.full_like(state.stage, int(Reason.PASSED))
        ),
    )


def _gate_results(
    state: SlotState, named: Tensor, op: Tensor, masks: ActionMasks, success: Tensor, rules: GrowthRules
) -> GateResults:
    """Evaluate G0 for a chosen empty slot with room, and G5 for a chosen HOLDING module."""
    faced = evaluate_gates(state, rules)
    g0 = named & masks.slot[:, OP_GERMINATE] & (op == OP_GERMINATE)[:, None]
    g5 = named & (op == OP_FOSSILIZE)[:, None] & (faced.gate == Gate.G5)
    g0_reason = torch.where(success, int(Reason.PASSED), int(Reason.INCOMPATIBLE))[:, None]
    return GateResults(
        gate=torch.where(g0, int(Gate.G0), torch.where(g5, int(Gate.G5), NO_GATE)),
        reason=torch.where(g0, g0_reason, torch.where(g5, faced.reason, int(Reason.PASSED))),
    )


def _germinate(state: SlotState, which: Tensor, actions: Tensor) -> None:
    """Set up a module at alpha 0; its first ramp is determined now and starts at G2."""
    style = actions[:, Head.STYLE]
    state.assign(
        which,
        stage=Stage.GERMINATED,
        epochs_in_stage=0,
        blueprint=actions[:, Head.BLUEPRINT, None],
        algorithm=_ALGORITHM[style][:, None],
        curve=_CURVE[style][:, None],
        tempo_epochs=_TEMPO[actions[:, Head.TEMPO]][:, None],
        alpha_target=_TARGET[actions[:, Head.ALPHA_TARGET]][:, None],
    )


def _cull(state: SlotState, which: Tensor, actions: Tensor) -> Tensor:
    """Remove modules that are at alpha 0 or to be removed INSTANTLY; start to fade the others.

    Returns:
        ``bool [E, S]``, removed.
    """
    instant = (actions[:, Head.ALPHA_SPEED] == AlphaSpeed.INSTANT)[:, None]
    removed = which & ((state.alpha == 0) | instant)
    _start_ramp(state, which & ~removed, torch.zeros(1, 1, dtype=torch.float64), actions)
    state.assign(which & ~removed, fading=True)
    state.clear(removed)
    state.assign(removed, stage=Stage.CULLED)
    return removed


def plant(state: SlotState, which: Tensor, blueprint: Tensor) -> None:
    """Set up modules that are part of the host from the start: FOSSILIZED, blended by ADD at alpha 1, never isolated.

    No limit on their number applies, because no controller requests them.

    Args:
        which: ``bool [E, S]``, empty slots.
        blueprint: ``int64 [E, S]``, read where planted.
    """
    assert not (which & (state.stage != Stage.DORMANT)).any(), "only an empty slot can be planted"
    state.assign(
        which,
        stage=Stage.FOSSILIZED,
        blueprint=blueprint,
        algorithm=int(BlendAlgorithm.ADD),
        alpha=1.0,
        alpha_start=1.0,
        alpha_target=1.0,
    )


def _set_alpha_target(state: SlotState, which: Tensor, actions: Tensor) -> Tensor:
    """Start a ramp from the present alpha to a new target.

    Returns:
        ``bool [E, S]``, the blend algorithm changed.
    """
    algorithm = _ALGORITHM[actions[:, Head.STYLE]][:, None]
    restyled = which & (state.algorithm != algorithm)
    _start_ramp(state, which, _TARGET[actions[:, Head.ALPHA_TARGET]][:, None], actions)
    state.assign(which, stage=Stage.BLENDING, epochs_in_stage=0, algorithm=algorithm)
    return restyled


def _start_ramp(state: SlotState, which: Tensor, target: Tensor, actions: Tensor) -> None:
    """Start a ramp at the chosen speed and curve, or jump at the next tick if the speed is INSTANT.

    Args:
        target: ``float64 [E or 1, 1]``.
    """
    speed = actions[:, Head.ALPHA_SPEED]
    mode = torch.where(speed == AlphaSpeed.INSTANT, int(AlphaMode.STEP), int(AlphaMode.RAMP))
    state.assign(
        which,
        alpha_mode=mode[:, None],
        alpha_start=state.alpha,
        alpha_target=target,
        ramp_elapsed=0,
        ramp_duration=_SPEED[speed][:, None],
        curve=actions[:, Head.ALPHA_CURVE, None],
        measured_since_ramp=False,
    )
