"""A hand-written rule: grow on a plateau, keep modules that help, cull the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.controllers.base import SICK, germinate, on_slot, waiting
from esper.controllers.tunable import KEEP_POINTS, Choices, Space, rule
from esper.envs.features import HISTORY
from esper.envs.records import EnvView
from esper.growth import Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Op
from esper.runtime.state import State, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicParameters:
    """Thresholds of the heuristic.

    Attributes:
        patience: epochs over which the host must improve, from 1 to 4.
        improvement: relative decrease of the val loss over these epochs below which the host counts as stalled.
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
    """The hand-written heuristic, with one decision per environment and epoch, in this order; ties go by canonical slot
    order.

    1. FOSSILIZE the settled module with the highest contribution above ``keep_points``.
    2. CULL the module with the lowest contribution among: settled modules whose contribution is not above
       ``keep_points``; modules in TRAINING whose gradient is so unhealthy that they would never blend and only block
       others; developing modules once ``max_seeds`` are FOSSILIZED, as no place will become free for them.
    3. On a plateau (val loss fell by less than ``improvement`` over the last ``patience`` epochs), GERMINATE in the
       least used empty slot, with the next of the blueprints that fit it. All slots grow side by side as far as the
       masks allow; gate G2 gives a free place to the best preview.

    Args:
        parameters: thresholds of each environment.
        num_slots: S.
        max_seeds: largest number of kept modules.
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

    def state_dict(self) -> State:
        return {"served": copied(self._served)}

    def load_state_dict(self, state: State) -> None:
        self._served = copied(state["served"])

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
        """Return which hosts have stalled, ``bool [E]``; false before there are enough epochs."""
        losses = view.history.losses
        before = losses.gather(1, (HISTORY - 1 - self._patience)[:, None]).squeeze(1)
        return losses[:, -1] > (1.0 - self._improvement) * before

    def _grow(self, env: int, empty: Tensor, fits: Tensor) -> Tensor:
        served = torch.where(empty, self._served[env], torch.iinfo(torch.int64).max)
        slot = int(served.argmin())
        blueprints = fits[slot].nonzero().flatten()
        # Every germination advances by one, so that all blueprints take turns.
        blueprint = int(blueprints[int(self._served[env].sum()) % len(blueprints)])
        self._served[env, slot] += 1
        return germinate(slot, blueprint)


def _least(which: Tensor, worth: Tensor) -> int:
    """Return the first of the slots ``which: bool [S]`` with the lowest contribution; unmeasured ones count as 0."""
    return int(torch.where(which, worth.nan_to_num(nan=0.0), torch.inf).argmin())


def choices(space: Space) -> Choices:
    """Values that a search may give to each threshold."""
    return {
        "patience": (1, 2, 3, 4),
        "improvement": (0.02, 0.05, 0.1, 0.2, 0.4, 0.7),
        "keep_points": KEEP_POINTS,
    }


TUNABLE = rule(HeuristicParameters, choices, lambda rows, space: Heuristic(rows, space.num_slots, space.max_seeds))
