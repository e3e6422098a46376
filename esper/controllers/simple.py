"""Controls that read nothing but masks: never grow, or any legal action at random."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.controllers.base import Stateless, waiting
from esper.envs.records import EnvView
from esper.growth.actions import OP_WAIT, canonical, head_sizes
from esper.runtime.controller_names import NEVER
from esper.runtime.state import RandomStream, State


class Never(Stateless):
    """The control that never grows."""

    name = NEVER

    def act(self, view: EnvView) -> Tensor:
        return waiting(view.state.num_envs)


class RandomLegal:
    """The control that draws each head uniformly from its legal choices, in the order of sampling.

    Args:
        generator: source of all its randomness.
    """

    name = "random"

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def reset(self, which: Tensor) -> None:
        """Do nothing, because there is no memory."""

    def act(self, view: EnvView) -> Tensor:
        masks = view.observation.masks
        num_envs, num_slots, num_blueprints = masks.blueprint.shape
        rows = torch.arange(num_envs)
        op = self._pick(masks.op)
        # WAIT has no slot; any value works, since its slot is set to 0 below.
        slot = self._pick(masks.slot[rows, op] | (op == OP_WAIT)[:, None])
        fits = masks.blueprint[rows, slot]
        blueprint = self._pick(fits | ~fits.any(dim=1, keepdim=True))
        rest = [
            torch.randint(size, (num_envs,), generator=self._generator)
            for size in head_sizes(num_slots, num_blueprints)[3:]
        ]
        return canonical(torch.stack([op, slot, blueprint, *rest], dim=1), masks.alpha)

    def state_dict(self) -> State:
        return RandomStream(self._generator).state_dict()

    def load_state_dict(self, state: State) -> None:
        RandomStream(self._generator).load_state_dict(state)

    def _pick(self, legal: Tensor) -> Tensor:
        """Draw one legal index per row of ``bool [E, n]``."""
        return torch.multinomial(legal.double(), 1, generator=self._generator).squeeze(1)
