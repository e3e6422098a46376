"""The learned controller: a frozen policy with its normaliser."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.envs.records import EnvView
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.greedy import GREEDY_RULES
from esper.runtime.controller_names import LEARNED
from esper.runtime.options import Greedy
from esper.runtime.state import RandomStream, State, copied


class Learned:
    """Controller that acts by a fixed policy and a fixed normaliser.

    Args:
        policy: policy trained on the same slots and features. It chooses among the blueprints that it was trained with.
        normaliser: normaliser of the trained policy.
        num_envs: E.
        generator: source of randomness when sampling.
        deterministic: take each head's most probable choice instead.
        greedy: rule for the op if ``deterministic``.
    """

    name = LEARNED

    def __init__(
        self,
        policy: GrowthPolicy,
        normaliser: Normaliser,
        num_envs: int,
        *,
        generator: torch.Generator,
        greedy: Greedy,
        deterministic: bool = True,
    ) -> None:
        self._policy, self._normaliser = policy, normaliser
        self._generator, self._deterministic = generator, deterministic
        self._hidden = policy.initial_state(num_envs)
        self._greedy = GREEDY_RULES[greedy](num_envs, self._hidden[0].device)

    def reset(self, which: Tensor) -> None:
        hidden, cell = self._hidden
        gone = which.to(hidden.device)[:, None]
        self._hidden = hidden.masked_fill(gone, 0.0), cell.masked_fill(gone, 0.0)
        self._greedy.reset(which)

    def state_dict(self) -> State:
        hidden = [copied(part) for part in self._hidden]
        stream = RandomStream(self._generator).state_dict()
        return {"hidden": hidden, "generator": stream, **self._greedy.state_dict()}

    def load_state_dict(self, state: State) -> None:
        hidden, cell = (part.to(self._hidden[0].device) for part in state["hidden"])
        self._hidden = hidden, cell
        RandomStream(self._generator).load_state_dict(state["generator"])
        self._greedy.load_state_dict(state)

    def act(self, view: EnvView) -> Tensor:
        observation = view.observation.to(self._hidden[0].device)
        result = self._policy.act(
            self._normaliser(observation.features),
            observation.blueprint_index,
            observation.masks.first_blueprints(self._policy.num_blueprints),
            self._hidden,
            self._generator,
            self._deterministic,
            greedy=self._greedy,
        )
        self._hidden = result.hidden
        return result.actions.cpu()
