"""Greedy rules: deterministic choices of the op from a policy's probabilities.

Axis legend: E = environments.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import Protocol

import torch
from torch import Tensor

from esper.growth.actions import NUM_OPS, OP_WAIT
from esper.policy.distributions import MaskedCategorical
from esper.runtime.options import Greedy
from esper.runtime.state import State, copied

ALMOST_SURE = 1 - 1e-9
"""Probability beyond which the hazard of an op grows no further in one step."""

OVERDUE = log(2) - 1e-6
"""Cumulative hazard at which half of the sampled episodes have taken an op, up to rounding."""


class GreedyRule(Protocol):
    """Interface of a greedy rule, which may remember earlier probabilities."""

    def choose(self, op: MaskedCategorical) -> Tensor:
        """Choose a legal op in each environment, ``int64 [E]``, and remember the probabilities."""

    def reset(self, which: Tensor) -> None:
        """Forget the past of the environments ``which: bool [E]``, whose episodes restart."""

    def state_dict(self) -> State:
        """Return the memory."""

    def load_state_dict(self, state: State) -> None:
        """Restore a state returned by :meth:`state_dict`."""


class Mode:
    """The most probable op of each step, so that WAIT wins for ever over several ops that share the rest."""

    def choose(self, op: MaskedCategorical) -> Tensor:
        return op.mode()

    def reset(self, which: Tensor) -> None:
        """Do nothing, because there is no memory."""

    def state_dict(self) -> State:
        """Return an empty state, because there is no memory."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing, because there is no memory."""


class Hazard:
    """The most probable op of each step, unless another is overdue: half of the sampled episodes would have taken it.

    The cumulative hazard of an op is minus the logarithm of the chance that sampling would not have taken it since
    this rule last did, or since it became legal. From log 2 on the op is overdue; of several the rarest is taken, which
    costs the others a step. Hence no op that sampling takes is passed over for ever, in favour of WAIT or of another,
    and none but the most probable one is taken before half of the sampled episodes have.

    Args:
        num_envs: E.
        device: device of the policy.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._hazard = torch.zeros(num_envs, NUM_OPS, dtype=torch.float64, device=device)

    def choose(self, op: MaskedCategorical) -> Tensor:
        probability = op.log_probs.double().exp().clamp(max=ALMOST_SURE)
        self._hazard = (self._hazard - torch.log1p(-probability)).masked_fill(~op.legal, 0.0)
        overdue = self._hazard >= OVERDUE
        overdue[..., OP_WAIT] = False
        rarest = probability.masked_fill(~overdue, inf).argmin(-1)
        chosen = torch.where(overdue.any(-1), rarest, op.mode())
        self._hazard = self._hazard.scatter(-1, chosen.unsqueeze(-1), 0.0)
        return chosen

    def reset(self, which: Tensor) -> None:
        self._hazard = self._hazard.masked_fill(which.to(self._hazard.device).unsqueeze(-1), 0.0)

    def state_dict(self) -> State:
        return {"hazard": copied(self._hazard)}

    def load_state_dict(self, state: State) -> None:
        self._hazard = state["hazard"].to(self._hazard.device)


GREEDY_RULES: dict[Greedy, Callable[[int, torch.device], GreedyRule]] = {
    Greedy.mode: lambda num_envs, device: Mode(),
    Greedy.hazard: Hazard,
}
"""Greedy rules by name, from E and the policy's device."""
