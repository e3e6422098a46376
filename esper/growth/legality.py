"""What is legal: written once, read by masking and by execution.

Masks forbid only what is physically impossible; when to act is the controller's business.
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
)
from esper.growth.gates import evaluate_gates
from esper.growth.stages import Gate, GrowthRules, Stage
from esper.growth.state import SlotState


def legal(state: SlotState, compatible: Tensor, rules: GrowthRules) -> ActionMasks:
    """Legal actions of every environment.

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
