"""Carrying out one action per environment, all environments at once."""

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
    AlphaSpeed,
    BlendAlgorithm,
    Head,
)
from esper.growth.gates import NO_GATE, Verdicts, evaluate_gates
from esper.growth.legality import legal
from esper.growth.stages import AlphaMode, Gate, GrowthRules, Reason, Stage
from esper.growth.state import SlotState

_ALGORITHM = torch.tensor([int(algorithm) for algorithm in STYLE_ALGORITHMS])
_CURVE = torch.tensor([int(curve) for curve in STYLE_CURVES])
_TEMPO = torch.tensor(TEMPO_EPOCHS)
_TARGET = torch.tensor(ALPHA_TARGETS, dtype=torch.float64)
_SPEED = torch.tensor(ALPHA_SPEED_EPOCHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an action did.

    Attributes:
        success: ``bool [E]``, the action was legal and took effect; always true for WAIT.
        germinated: ``bool [E, S]``, a module must be made now.
        removed: ``bool [E, S]``, the module must be freed now.
        restyled: ``bool [E, S]``, the blend algorithm of a present module changed.
        fossilized: ``bool [E, S]``, the module became part of the host.
        verdicts: gates looked at: G0 for GERMINATE, G5 for FOSSILIZE.
    """

    success: Tensor
    germinated: Tensor
    removed: Tensor
    restyled: Tensor
    fossilized: Tensor
    verdicts: Verdicts


def apply_actions(state: SlotState, actions: Tensor, compatible: Tensor, rules: GrowthRules) -> Applied:
    """Apply one action per environment to ``state``. An illegal action changes nothing.

    Args:
        actions: ``int64 [E, 8]`` in head order, every index within its head.
        compatible: ``bool [S, B]`` or ``[E, S, B]``, blueprints that fit each place.
    """
    assert actions.shape == (state.num_envs, NUM_HEADS), f"actions have shape {tuple(actions.shape)}"
    masks = legal(state, compatible, rules)
    rows = torch.arange(state.num_envs)
    op, slot = actions[:, Head.OP], actions[:, Head.SLOT]
    fits = masks.blueprint[rows, slot, actions[:, Head.BLUEPRINT]]
    allowed = masks.slot[rows, op, slot]
    done = allowed & (fits | (op != OP_GERMINATE))
    named = one_hot(slot, state.num_slots).bool()  # [E, S]
    verdicts = _verdicts(state, named, op, allowed, fits, rules)

    def where(which: int) -> Tensor:
        return named & (done & (op == which))[:, None]

    germinated, fossilized = where(OP_GERMINATE), where(OP_FOSSILIZE)
    _germinate(state, germinated, actions)
    removed = _cull(state, where(OP_CULL), actions)
    restyled = _set_alpha_target(state, where(OP_SET_ALPHA_TARGET), actions)
    state.assign(fossilized, stage=Stage.FOSSILIZED, epochs_in_stage=0)
    state.assign(where(OP_EXTEND), dwell=0)
    return Applied(
        success=done | (op == OP_WAIT),
        germinated=germinated,
        removed=removed,
        restyled=restyled,
        fossilized=fossilized,
        verdicts=verdicts,
    )


def _verdicts(
    state: SlotState, named: Tensor, op: Tensor, allowed: Tensor, fits: Tensor, rules: GrowthRules
) -> Verdicts:
    """G0 where an empty slot with room was named, G5 where a HOLDING module was."""
    faced = evaluate_gates(state, rules)
    g0 = named & (allowed & (op == OP_GERMINATE))[:, None]
    g5 = named & (op == OP_FOSSILIZE)[:, None] & (faced.gate == Gate.G5)
    g0_reason = torch.where(fits, int(Reason.PASSED), int(Reason.INCOMPATIBLE))[:, None]
    return Verdicts(
        gate=torch.where(g0, int(Gate.G0), torch.where(g5, int(Gate.G5), NO_GATE)),
        reason=torch.where(g0, g0_reason, torch.where(g5, faced.reason, int(Reason.PASSED))),
    )


def _germinate(state: SlotState, which: Tensor, actions: Tensor) -> None:
    """A module at alpha 0 whose first ramp is settled now and starts at G2."""
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
    """Remove at once what is switched off or should go INSTANTLY; start the fade of the rest.

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
    """Modules that are part of the host from the start: FOSSILIZED, blended by ADD at alpha 1, never isolated.

    No limit on their number applies: it is no controller that asks for them.

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
    """Ramp from the present alpha to a new target.

    Returns:
        ``bool [E, S]``, the blend algorithm changed.
    """
    algorithm = _ALGORITHM[actions[:, Head.STYLE]][:, None]
    restyled = which & (state.algorithm != algorithm)
    _start_ramp(state, which, _TARGET[actions[:, Head.ALPHA_TARGET]][:, None], actions)
    state.assign(which, stage=Stage.BLENDING, epochs_in_stage=0, algorithm=algorithm)
    return restyled


def _start_ramp(state: SlotState, which: Tensor, target: Tensor, actions: Tensor) -> None:
    """Ramp at the chosen speed and curve, or jump at the next tick where the speed is INSTANT.

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
