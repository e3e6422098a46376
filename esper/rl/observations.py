"""The two forms in which outside learners see observations, as gymnasium spaces.

Axis legend: E = environments, D = features, S = slots, B = blueprints, n = choices of action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from esper.envs.features import BOUND
from esper.envs.observations import Observation

Choices = NDArray[np.bool_]


class ObservationForm(Protocol):
    """Interface of a form of observations."""

    @property
    def space(self) -> Space[Any]:
        """Observations of one environment."""

    def of(self, observation: Observation, choices: Choices) -> Any:
        """Translate the observation of E environments; ``choices`` of action are legal, ``bool [E, n]``."""


class OneBox:
    """One array ``float32 [E, D + S]``: the features, then the blueprint's index in every slot, -1 for none."""

    def __init__(self, num_features: int, num_slots: int, num_blueprints: int, num_choices: int) -> None:
        low = np.repeat([-BOUND, -1], [num_features, num_slots]).astype(np.float32)
        high = np.repeat([BOUND, num_blueprints - 1], [num_features, num_slots]).astype(np.float32)
        self.space = Box(low, high)

    def of(self, observation: Observation, choices: Choices) -> Any:
        return np.hstack([observation.features.numpy(), observation.blueprint_index.numpy().astype(np.float32)])


class Named:
    """Arrays by name: ``features``, ``float32 [E, D]``; ``blueprints``, ``int64 [E, S]``: 0 for none, else the index +
    1; ``action_mask``, ``int8 [E, n]``: 1 for legal choices.
    """

    def __init__(self, num_features: int, num_slots: int, num_blueprints: int, num_choices: int) -> None:
        self.space = Dict(
            features=Box(-BOUND, BOUND, (num_features,)),
            blueprints=MultiDiscrete([num_blueprints + 1] * num_slots),
            action_mask=MultiBinary(num_choices),
        )

    def of(self, observation: Observation, choices: Choices) -> Any:
        return {
            "features": observation.features.numpy(),
            "blueprints": observation.blueprint_index.numpy() + 1,
            "action_mask": choices.astype(np.int8),
        }


FORMS: dict[str, Callable[[int, int, int, int], ObservationForm]] = {"box": OneBox, "dict": Named}
"""Forms by name, built from the numbers of features, slots, blueprints and choices of action."""
