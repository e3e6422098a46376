"""A hand-written rule: grow on a plateau, keep what helps, take out what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.controllers.base import SICK, germinate, on_slot, waiting
from esper.envs.history import HISTORY
from esper.envs.records import EnvView
from esper.growth import Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicParameters:
    """Thresholds of the heuristic.

    Attributes:
        patience: epochs over which the host must improve, from 1 to 4.
        improvement: relative fall of the val loss over them below which growth has stalled.
        keep_points: contribution, in points, that a module must exceed.
    """

    patience: int = 2
    improvement: float = 0.2
    keep_points: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.patience < HISTORY:
            raise ValueError(
                f"patience={self.patience} must be from 1 to {HISTORY - 1}, the epochs that are remembered"
            )


class Heuristic:
    """One decision per environment and epoch, in this order; ties go by canonical slot order.

    1. FOSSILIZE the settled module with the highest contribution above ``keep_points``.
    2. CULL the one that is worth least of: settled modules whose contribution is not above it; modules in TRAINING
       whose gradient is so unhealthy that they would never blend and only bar the way for others; developing modules
       once ``max_seeds`` are FOSSILIZED, as no place will come free for them.
    3. On a plateau (val loss fell by less than ``improvement`` over the last ``patience`` epochs), GERMINATE in the
       empty slot that was served least, with the next of the blueprints that fit it. All slots grow side by side as
       far as the masks allow; gate G2 gives a free place to the best preview.

    Args:
        parameters: thresholds of each environment.
        num_slots: S.
        max_seeds: modules that may be kept.
    """

    name = "heuristic"

    def __init__(self, parameters: Sequence[HeuristicParameters], num_slots: int, max_seeds: int) -> None:
        self._max_seeds = max_seeds
        self._patience = torch.tensor([each.patience for each in parameters])
        self._improvement = torch.tensor([each.improvement for each in parameters], dtype=torch.float64)
        self._keep_points = [each.keep_points for each in parameters]
        self._served = torch.zeros(len(parameters), num_slots, dtype=torch.int64)

    def reset(self, which: Tensor) -> None:
        self._served[which] = 0

    def act(self, view: EnvView) -> Tensor:
        masks, state = view.observation.masks, view.state
        settled = (state.stage == Stage.HOLDING) & state.measured_since_ramp & ~state.fading
        sick = (state.stage == Stage.TRAINING) & (state.gradient_health < SICK)
        stalled = self._stalled(view)
        full = (state.stage == Stage.FOSSILIZED).sum(dim=1) >= self._max_seeds
        useless = sick | (state.developing & full[:, None])
        actions = waiting(state.num_envs)
        for env in range(state.num_envs):
            worth, keep_points = state.contribution[env], self._keep_points[env]
            keep = masks.slot[env, OP_FOSSILIZE] & settled[env] & (worth > keep_points)
            drop = masks.slot[env, OP_CULL] & ((settled[env] & (worth <= keep_points)) | useless[env])
            if keep.any():
                actions[env] = on_slot(Op.FOSSILIZE, int(torch.where(keep, worth, -torch.inf).argmax()))
            elif drop.any():
                actions[env] = on_slot(Op.CULL, _least(drop, worth))
            elif stalled[env] and masks.op[env, OP_GERMINATE]:
                actions[env] = self._grow(env, masks.slot[env, OP_GERMINATE], masks.blueprint[env])
        return actions

    def _stalled(self, view: EnvView) -> Tensor:
        """``bool [E]``; false while there are not enough epochs to tell."""
        losses = view.history.losses
        before = losses.gather(1, (HISTORY - 1 - self._patience)[:, None]).squeeze(1)
        return losses[:, -1] > (1.0 - self._improvement) * before

    def _grow(self, env: int, empty: Tensor, fits: Tensor) -> Tensor:
        served = torch.where(empty, self._served[env], torch.iinfo(torch.int64).max)
        slot = int(served.argmin())
        blueprints = fits[slot].nonzero().flatten()
        # Every germination of the episode moves on by one, so that all blueprints get their turn.
        blueprint = int(blueprints[int(self._served[env].sum()) % len(blueprints)])
        self._served[env, slot] += 1
        return germinate(slot, blueprint)


def _least(which: Tensor, worth: Tensor) -> int:
    """The first of the slots ``which: bool [S]`` that is worth least; what was not measured is worth nothing."""
    return int(torch.where(which, worth.nan_to_num(nan=0.0), torch.inf).argmin())
