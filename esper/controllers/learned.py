"""The learned controller: a frozen policy with its normaliser."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.envs.records import EnvView
from esper.policy import GrowthPolicy, Normaliser


class Learned:
    """Acts by a policy whose parameters and normaliser stay as they are.

    Args:
        policy: trained on the same slots and features.
        normaliser: as it was when the policy was trained.
        num_envs: E.
        generator: source of randomness when sampling.
        deterministic: take each head's most probable choice instead.
    """

    name = "learned"

    def __init__(
        self,
        policy: GrowthPolicy,
        normaliser: Normaliser,
        num_envs: int,
        *,
        generator: torch.Generator,
        deterministic: bool = True,
    ) -> None:
        self._policy, self._normaliser = policy, normaliser
        self._generator, self._deterministic = generator, deterministic
        self._hidden = policy.initial_state(num_envs)

    def reset(self, which: Tensor) -> None:
        hidden, cell = self._hidden
        gone = which.to(hidden.device)[:, None]
        self._hidden = hidden.masked_fill(gone, 0.0), cell.masked_fill(gone, 0.0)

    def act(self, view: EnvView) -> Tensor:
        observation = view.observation.to(self._hidden[0].device)
        result = self._policy.act(
            self._normaliser(observation.features),
            observation.blueprint_index,
            observation.masks,
            self._hidden,
            self._generator,
            self._deterministic,
        )
        self._hidden = result.hidden
        return result.actions.cpu()
