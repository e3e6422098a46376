"""The two forms in which outside learners choose actions, as gymnasium spaces with masks.

Axis legend: E = environments, S = slots, B = blueprints, n = choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete, Space
from numpy.typing import NDArray
from torch import Tensor

from esper.growth.actions import ActionMasks, head_sizes
from esper.growth.flat import flat_actions
from esper.growth.legality import permitted


class ActionForm(Protocol):
    """Interface of a form of actions."""

    @property
    def space(self) -> Space[Any]:
        """Actions of one environment."""

    @property
    def num_choices(self) -> int:
        """Number of choices n in a row of masks."""

    def rows(self, actions: Any) -> Tensor:
        """Translate the actions of E environments to ``int64 [E, 8]`` in head order.

        Raises:
            ValueError: an action is not in the space.
        """

    def masks(self, masks: ActionMasks) -> NDArray[np.bool_]:
        """Return the legal choices, ``bool [E, n]``."""


class Flat:
    """A number per action, ``Discrete(1 + S * (B + 3))`` (:mod:`esper.growth.flat`), with exact masks."""

    def __init__(self, num_envs: int, slot_ids: Sequence[str], blueprint_ids: Sequence[str]) -> None:
        self.num_envs = num_envs
        self.actions = flat_actions(slot_ids, blueprint_ids)
        self.space = Discrete(len(self.actions))
        self.num_choices = len(self.actions)

    def rows(self, actions: Any) -> Tensor:
        return self.actions[_checked(actions, self.num_envs, np.array(len(self.actions)))]

    def masks(self, masks: ActionMasks) -> NDArray[np.bool_]:
        return permitted(masks, self.actions[None]).numpy()


class Factored:
    """A number per head, ``MultiDiscrete`` of the policy's eight heads.

    A mask per head cannot express which slot an op needs, or which blueprint a slot takes: it has what is legal in some
    combination, and some combinations are illegal.
    """

    def __init__(self, num_envs: int, slot_ids: Sequence[str], blueprint_ids: Sequence[str]) -> None:
        self.num_envs = num_envs
        self.sizes = np.array(head_sizes(len(slot_ids), len(blueprint_ids)))
        self.space = MultiDiscrete(self.sizes)
        self.num_choices = int(self.sizes.sum())

    def rows(self, actions: Any) -> Tensor:
        return torch.from_numpy(_checked(actions, self.num_envs, self.sizes))

    def masks(self, masks: ActionMasks) -> NDArray[np.bool_]:
        heads = [masks.op, masks.slot.any(1), masks.blueprint.any(1)]
        heads += [torch.ones(len(masks.op), size, dtype=torch.bool) for size in self.sizes[len(heads) :].tolist()]
        # A head that matters to no legal op takes any choice, because no choice at all is no distribution.
        return torch.cat([legal | ~legal.any(1, keepdim=True) for legal in heads], dim=1).numpy()


FORMS: dict[str, Callable[[int, Sequence[str], Sequence[str]], ActionForm]] = {"flat": Flat, "factored": Factored}
"""Forms by name, built from E, slot ids and blueprint ids."""


def _checked(actions: Any, num_envs: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return actions as ``int64 [E]`` or ``[E, 8]``, each below the number of its choices."""
    found = np.asarray(actions)
    shape = (num_envs, *sizes.shape)
    if found.dtype.kind not in "iu" or found.shape != shape or ((found < 0) | (found >= sizes)).any():
        most = "below " + ", ".join(map(str, np.atleast_1d(sizes)))
        raise ValueError(f"actions must be integers of shape {list(shape)}, from 0, {most}, got {actions!r}")
    return found.astype(np.int64)
