"""Legality of actions, defined once for both masks and execution.

Masks forbid only the physically impossible; the timing of actions is up to the controller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.growth.actions import (
    NUM_OPS,
    OP_CULL,
    OP_EXTEND,
    OP_FOSSILIZE,
    OP_GERMINATE,
    OP_SET_ALPHA_TARGET,
    OP_WAIT,
    ActionMasks,
    Head,
)
from esper.growth.gates import evaluate_gates
from esper.growth.stages import Gate, GrowthRules, Stage
from esper.growth.state import SlotState


def legal(state: SlotState, compatible: Tensor, rules: GrowthRules) -> ActionMasks:
    """Return the legal actions of every environment.

    Args:
        compatible: ``bool [S, B]`` or ``[E, S, B]``, blueprints that fit each place (gate G0).

    Returns:
        Masks that share no memory with ``state``.
    """
    num_envs, num_slots = state.stage.shape
    fits = compatible.expand(num_envs, num_slots, compatible.shape[-1])
    room = (state.developing.sum(1) < rules.max_developing) & (
        (state.stage == Stage.FOSSILIZED).sum(1) < rules.max_seeds
    )  # [E]
    slot = torch.zeros(num_envs, NUM_OPS, num_slots, dtype=torch.bool)
    slot[:, OP_GERMINATE] = (state.stage == Stage.DORMANT) & fits.any(-1) & room[:, None]
    slot[:, OP_CULL] = state.live & (state.age >= rules.min_cull_age)
    slot[:, OP_FOSSILIZE] = evaluate_gates(state, rules).passed(Gate.G5)
    slot[:, OP_SET_ALPHA_TARGET] = (state.stage == Stage.HOLDING) & ~state.fading
    slot[:, OP_EXTEND] = state.stage == Stage.TRAINING
    op = slot.any(-1)
    op[:, OP_WAIT] = True
    return ActionMasks(op=op, slot=slot, blueprint=fits, alpha=state.alpha.float())


def permitted(masks: ActionMasks, actions: Tensor) -> Tensor:
    """Return which actions are legal as a whole: the op, its slot, and for GERMINATE the blueprint.

    Args:
        masks: masks of E environments.
        actions: ``int64 [E, 8]``, one for each environment, or ``[1, N, 8]``, the same N for all.

    Returns:
        ``bool [E]`` or ``[E, N]``.
    """
    rows = torch.arange(len(masks.op)).reshape(-1, *[1] * (actions.ndim - 2))
    op, slot = actions[..., Head.OP], actions[..., Head.SLOT]
    fits = masks.blueprint[rows, slot, actions[..., Head.BLUEPRINT]] | (op != OP_GERMINATE)
    return (masks.slot[rows, op, slot] & fits) | (op == OP_WAIT)
