"""Collection of a rollout: the policy acts, or the controller that it imitates; the hosts train, the buffer fills.

Axis legend: E = environments, T = steps, D = features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.algorithms import RolloutBuffer
from esper.controllers import Controller
from esper.controllers.guarded import decide, start_anew
from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.growth.actions import ActionMasks
from esper.growth.legality import permitted
from esper.policy import GrowthPolicy, Hidden, Normaliser
from esper.runtime.state import State, copied, plain_fields

OnStep = Callable[[Observation, Tensor, StepResult], None]
"""Function called after each step with the controller's observation, the actions ``int64 [E, 8]``, and the result."""


@dataclass(slots=True)
class RolloutState:
    """State that one step, and one rollout, hands to the next: environments continue in mid-episode.

    Attributes:
        observation: next observation of the policy.
        hidden: the policy's recurrent state, ``[E, H]`` each.
        raw: features ``float32 [E, D]`` of the steps of this rollout so far, before the normaliser.
    """

    observation: Observation
    hidden: Hidden
    raw: list[Tensor] = field(default_factory=list)

    def state_dict(self) -> State:
        """Return the state. Every tensor has a leading environment axis."""
        seen = self.observation
        return {
            "features": copied(seen.features),
            "blueprint_index": copied(seen.blueprint_index),
            "masks": plain_fields(seen.masks),
            "hidden": [copied(part) for part in self.hidden],
            "raw": [copied(features) for features in self.raw],
        }

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> RolloutState:
        """Rebuild from :meth:`state_dict`, with the policy's part on a device."""
        observation = Observation(
            features=state["features"], blueprint_index=state["blueprint_index"], masks=ActionMasks(**state["masks"])
        )
        h, c = (part.to(device) for part in state["hidden"])
        return cls(observation, (h, c), [features.to(device) for features in state["raw"]])


def collect(
    env: GrowthEnv,
    policy: GrowthPolicy,
    normaliser: Normaliser,
    buffer: RolloutBuffer,
    rollout: RolloutState,
    generator: torch.Generator,
    on_step: OnStep,
    stop: Callable[[], object] = lambda: False,
    expert: Controller | None = None,
) -> Tensor | None:
    """Fill the buffer with T steps of every environment, or with the missing ones; update ``rollout``.

    Environments are reset exactly where their episode ended; so are the policy's recurrent state and the expert.

    Args:
        env: environment to step.
        policy, normaliser: policy and its input scaling.
        buffer: buffer to fill, possibly filled in part by a call that was stopped.
        rollout: present state of the environments.
        generator: generator of the policy's choices.
        on_step: called after every step.
        stop: called after every step; true stops here.
        expert: chooses the actions in place of the policy, which looks on: the buffer holds its recurrent state, values
            and log-probabilities.

    Returns:
        Raw features ``float32 [E, T, D]``, to be added to the normaliser after the update; ``None`` if stopped, even
        after the last step: the next call with the same arguments continues.
    """
    device = rollout.hidden[0].device
    if not rollout.raw:
        buffer.start(rollout.hidden)
    while not buffer.full:
        seen = rollout.observation.to(device)
        rollout.raw.append(seen.features)
        features = normaliser(seen.features)
        given = None if expert is None else _actions_of(expert, env, rollout.observation).to(device)
        inputs = features, seen.blueprint_index, seen.masks, rollout.hidden
        act = policy.act(*inputs, generator, describe_row=_stages_of(env), given=given)
        actions = act.actions.cpu()
        result = env.step(actions)
        on_step(rollout.observation, actions, result)
        terminated = result.terminated.to(device, non_blocking=True)
        is_last = buffer.size + 1 == buffer.num_steps
        bootstrap = _next_value(policy, normaliser, result, act.hidden) if is_last else None
        buffer.add(
            features=features,
            blueprint_index=seen.blueprint_index,
            masks=seen.masks,
            act=act,
            reward=result.reward,
            terminated=terminated,
            truncated=torch.zeros_like(result.terminated),
            bootstrap_value=bootstrap,
        )
        rollout.observation = env.reset(result.terminated) if result.terminated.any() else result.observation
        if expert is not None and result.terminated.any():
            start_anew(expert, result.terminated)
        ended = terminated[:, None]
        rollout.hidden = act.hidden[0].masked_fill(ended, 0.0), act.hidden[1].masked_fill(ended, 0.0)
        if stop():
            return None
    raw, rollout.raw = torch.stack(rollout.raw, dim=1), []
    return raw


def _next_value(policy: GrowthPolicy, normaliser: Normaliser, result: StepResult, hidden: Hidden) -> Tensor:
    """Return V of the true next state, before any reset, with its recurrent state, ``float32 [E]``."""
    following = result.observation.to(hidden[0].device)
    return policy.value(normaliser(following.features), following.blueprint_index, following.masks, hidden)


def _actions_of(expert: Controller, env: GrowthEnv, observation: Observation) -> Tensor:
    """Return a controller's actions, ``int64 [E, 8]``, with WAIT in place of illegal ones, which do nothing either."""
    actions = decide(expert, env.view(observation))
    return actions * permitted(observation.masks, actions)[:, None]


def _stages_of(env: GrowthEnv) -> Callable[[int], str]:
    """Return a function that names an environment's stages, for error messages."""

    def describe(row: int) -> str:
        return ", ".join(f"{slot_id} {report.stage.name}" for slot_id, report in env.reports(row).items())

    return describe
