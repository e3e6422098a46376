"""The two forms in which outside learners see observations, as gymnasium spaces.

Axis legend: E = environments, D = features, S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete, Space

from esper.envs.features import BOUND
from esper.envs.observations import Observation


class ObservationForm(Protocol):
    """Interface of a form of observations."""

    @property
    def space(self) -> Space[Any]:
        """Observations of one environment."""

    def of(self, observation: Observation) -> Any:
        """Translate the observation of E environments."""


class OneBox:
    """One array ``float32 [E, D + S]``: the features, then the blueprint's index in every slot, -1 for none."""

    def __init__(self, num_features: int, num_slots: int, num_blueprints: int) -> None:
        low = np.repeat([-BOUND, -1], [num_features, num_slots]).astype(np.float32)
        high = np.repeat([BOUND, num_blueprints - 1], [num_features, num_slots]).astype(np.float32)
        self.space = Box(low, high)

    def of(self, observation: Observation) -> Any:
        return np.hstack([observation.features.numpy(), observation.blueprint_index.numpy().astype(np.float32)])


class Named:
    """Two arrays by name: ``features``, ``float32 [E, D]``, and ``blueprints``, ``int64 [E, S]``: 0 for none, else the
    index + 1.
    """

    def __init__(self, num_features: int, num_slots: int, num_blueprints: int) -> None:
        features = Box(-BOUND, BOUND, (num_features,))
        self.space = Dict(features=features, blueprints=MultiDiscrete([num_blueprints + 1] * num_slots))

    def of(self, observation: Observation) -> Any:
        return {"features": observation.features.numpy(), "blueprints": observation.blueprint_index.numpy() + 1}


FORMS: dict[str, Callable[[int, int, int], ObservationForm]] = {"box": OneBox, "dict": Named}
"""Forms by name, built from the numbers of features, slots and blueprints."""
