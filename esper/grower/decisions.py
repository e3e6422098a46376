"""Decisions in a user's network: requested, checked, and recorded with their reasons."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.guarded import decide, start_anew
from esper.envs.lifecycle import Lifecycle
from esper.envs.observations import Observation
from esper.envs.records import EnvView
from esper.grower.deciding import Decider
from esper.grower.reporting import reason
from esper.grower.views import GrowthView
from esper.growth.actions import OP_GERMINATE, OP_WAIT, ActionMasks, FactoredAction, Head, describe, encode
from esper.runtime.ranks import Ranks
from esper.runtime.state import State

WAIT = FactoredAction(op="WAIT")


class Decisions:
    """Successive decisions in one environment.

    Args:
        decider: source of decisions.
        slots: paths of the slots.
        ranks: ranks that train replicas of the network; the first one decides for all.

    Attributes:
        action: the last decision; ``None`` before the first and after the last epoch.
        reason: reason of the last decision, or why it had no effect.
        illegal: number of decisions without effect.
    """

    def __init__(self, decider: Decider, slots: Sequence[str], ranks: Ranks) -> None:
        self._decider, self._slots, self._ranks = decider, tuple(slots), ranks
        self.action: FactoredAction | None = None
        self.reason, self.illegal = "", 0
        if decider.controller is not None:
            start_anew(decider.controller, torch.ones(1, dtype=torch.bool))

    def make(self, lifecycle: Lifecycle, observation: Observation, seen: GrowthView) -> None:
        """Make a decision, and apply it to the lifecycle.

        Args:
            lifecycle: lifecycle of one environment.
            observation: present observation, for a controller.
            seen: present view, for a user's function.

        Raises:
            TypeError: a user's function does not return an action.
        """
        answer = self._ranks.broadcast(self._ask(lifecycle.view(observation), seen) if self._ranks.is_first else WAIT)
        actions = answer if isinstance(answer, Tensor) else self._encoded(answer, seen)
        alpha = float(lifecycle.state.alpha[0, int(actions[0, Head.SLOT])])
        self.action = describe(actions[0].tolist(), alpha, self._slots, blueprint_ids())
        self.reason = reason(self.action, seen)
        if not _is_legal(observation.masks, actions[0]):
            self.reason = f"not possible: {self.reason}"
            self._refuse(f"{self.action.op} at {self.action.slot!r}", seen)
            actions = torch.zeros_like(actions)
        lifecycle.act(actions)

    def end(self) -> None:
        """Record that there is nothing left to decide."""
        self.action, self.reason = None, ""

    def _ask(self, state: EnvView, view: GrowthView) -> Tensor | FactoredAction:
        """Return the decision of a controller, ``int64 [1, 8]``, or of a user's function."""
        if self._decider.controller is not None:
            return decide(self._decider.controller, state)
        assert self._decider.function is not None
        answer = self._decider.function(view)
        if answer is None:
            return WAIT
        if not isinstance(answer, FactoredAction):
            raise TypeError(
                f"controller: {self._decider.name} must return a FactoredAction or None, got a {type(answer).__name__}"
            )
        return answer

    def _encoded(self, answer: FactoredAction, view: GrowthView) -> Tensor:
        """Encode an action as ``int64 [1, 8]``; WAIT for unknown names."""
        try:
            return encode(answer, self._slots, blueprint_ids())[None]
        except ValueError as error:
            self._refuse(str(error), view)
            return encode(WAIT, self._slots, blueprint_ids())[None]

    def _refuse(self, what: str, view: GrowthView) -> None:
        """Count an impossible decision, and warn about the first one."""
        self.illegal += 1
        if self.illegal == 1 and self._ranks.is_first:
            warnings.warn(
                f"controller: {self._decider.name} decided what is not possible after epoch {view.epoch} ({what}): it "
                "counts as WAIT, now and whenever it happens; sheet() says how often",
                stacklevel=6,
            )

    def state_dict(self) -> State:
        """Return the last decision, and the state of its source."""
        controller = self._decider.controller
        return {
            "controller": None if controller is None else controller.state_dict(),
            "action": None if self.action is None else asdict(self.action),
            "reason": self.reason,
            "illegal": self.illegal,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state returned by :meth:`state_dict`."""
        if self._decider.controller is not None:
            self._decider.controller.load_state_dict(state["controller"])
        self.action = None if state["action"] is None else FactoredAction(**state["action"])
        self.reason, self.illegal = state["reason"], state["illegal"]


def _is_legal(masks: ActionMasks, row: Tensor) -> bool:
    """Return whether an action ``int64 [8]`` would take effect in the single environment of the masks."""
    op, slot, blueprint = (int(row[head]) for head in (Head.OP, Head.SLOT, Head.BLUEPRINT))
    fits = op != OP_GERMINATE or bool(masks.blueprint[0, slot, blueprint])
    return op == OP_WAIT or (bool(masks.slot[0, op, slot]) and fits)
