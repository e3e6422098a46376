"""A plugin with rivals of the learned controller on ``digits_arrival``: the fixed schedule that is best on validation
hosts, and a rule that follows the arrival of classes in the validation loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers import ControllerContext, PlannedGermination, Schedule, germinate, register_controller
from esper.envs.records import EnvView
from esper.growth.actions import OP_GERMINATE

SLOT, MODULE = 0, blueprint_ids().index("conv_heavy")
"""Slot and blueprint that are best for almost all hosts of the preset (``landscape.py``)."""

EPOCH = 16
"""Best epoch of a fixed schedule, on validation hosts (``landscape.py``)."""

JUMP = 0.25
"""Best rise of the validation loss at which to grow, likewise."""


def grow_where_the_loss_has_risen(actions: Tensor, view: EnvView, jumps: Tensor) -> None:
    """Replace actions by germination, where that is legal, nothing stands, and the validation loss of the last epoch is
    higher than that of the one before it by more than a jump.

    Args:
        actions: ``int64 [E, 8]``, changed in place.
        view: environments.
        jumps: ``[E]``.
    """
    losses = view.history.losses
    jumped = losses[:, -1] > losses[:, -2] + jumps  # false before there are two epochs
    able = view.observation.masks.slot[:, OP_GERMINATE, SLOT] & ~view.state.present.any(dim=1)
    actions[jumped & able] = germinate(SLOT, MODULE)


class RisenLoss(Schedule):
    """The rule that grows in the epoch after the validation loss has risen, and keeps as soon as that is legal."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([[]] * num_envs, name="risen_loss")

    def act(self, view: EnvView) -> Tensor:
        actions = super().act(view)
        grow_where_the_loss_has_risen(actions, view, torch.full((len(actions),), JUMP, dtype=torch.float64))
        return actions


def best_epoch(context: ControllerContext) -> Schedule:
    """Build the fixed schedule of all environments."""
    return Schedule([[PlannedGermination(EPOCH, SLOT, MODULE)]] * context.num_envs, name="best_epoch")


register_controller("best_epoch", best_epoch)
register_controller("risen_loss", lambda context: RisenLoss(context.num_envs))
