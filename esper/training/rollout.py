"""Collecting a rollout: the policy acts, the hosts train, the buffer fills.

Axis legend: E = environments, T = steps, D = features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.growth.actions import ActionMasks
from esper.policy import GrowthPolicy, Hidden, Normaliser
from esper.ppo import RolloutBuffer
from esper.runtime.state import State, copied, plain_fields

OnStep = Callable[[Observation, Tensor, StepResult], None]
"""Called with what the controller saw, the actions ``int64 [E, 8]``, and what they led to."""


@dataclass(slots=True)
class Carry:
    """What passes from one step to the next, and from one rollout to the next: environments go on in mid-episode.

    Attributes:
        observation: what the policy sees next.
        hidden: its memory, each ``[E, H]``.
        raw: features ``float32 [E, D]`` of the steps of this rollout so far, before the normaliser.
    """

    observation: Observation
    hidden: Hidden
    raw: list[Tensor] = field(default_factory=list)

    def state_dict(self) -> State:
        """All of it. Every tensor has a leading environment axis."""
        seen = self.observation
        return {
            "features": copied(seen.features),
            "blueprint_index": copied(seen.blueprint_index),
            "masks": plain_fields(seen.masks),
            "hidden": [copied(part) for part in self.hidden],
            "raw": [copied(features) for features in self.raw],
        }

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> Carry:
        """What this is the state of, with the policy's part of it on a device."""
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
    carry: Carry,
    generator: torch.Generator,
    on_step: OnStep,
    stop: Callable[[], object] = lambda: False,
) -> Tensor | None:
    """Fill the buffer with T steps of every environment, or with those that are missing; moves ``carry`` on.

    Environments are reset where, and only where, their episode ended; so is the policy's memory.

    Args:
        env: to be stepped.
        policy, normaliser: who acts, and on what scale.
        buffer: to be filled, or filled in part by a call that was stopped.
        carry: where the environments are.
        generator: of the policy's choices.
        on_step: told of every step.
        stop: asked after every step whether to leave it at that.

    Returns:
        Raw features ``float32 [E, T, D]``, for the normaliser to take in after the update; ``None`` if stopped, even
        after the last step: the next call with the same arguments goes on from there.
    """
    device = carry.hidden[0].device
    if not carry.raw:
        buffer.start(carry.hidden)
    while not buffer.full:
        seen = carry.observation.to(device)
        carry.raw.append(seen.features)
        features = normaliser(seen.features)
        act = policy.act(
            features, seen.blueprint_index, seen.masks, carry.hidden, generator, describe_row=_stages_of(env)
        )
        actions = act.actions.cpu()
        result = env.step(actions)
        on_step(carry.observation, actions, result)
        terminated = result.terminated.to(device)
        bootstrap = None
        if buffer.size + 1 == buffer.num_steps:
            # The true next state, before any reset, with the memory that belongs to it.
            following = result.observation.to(device)
            bootstrap = policy.value(
                normaliser(following.features), following.blueprint_index, following.masks, act.hidden
            )
        buffer.add(
            features=features,
            blueprint_index=seen.blueprint_index,
            masks=seen.masks,
            act=act,
            reward=result.reward.to(device),
            terminated=terminated,
            truncated=torch.zeros_like(terminated),
            bootstrap_value=bootstrap,
        )
        carry.observation = env.reset(result.terminated) if result.terminated.any() else result.observation
        ended = terminated[:, None]
        carry.hidden = act.hidden[0].masked_fill(ended, 0.0), act.hidden[1].masked_fill(ended, 0.0)
        if stop():
            return None
    raw, carry.raw = torch.stack(carry.raw, dim=1), []
    return raw


def _stages_of(env: GrowthEnv) -> Callable[[int], str]:
    """Names an environment's stages when its masks turn out to be broken."""

    def describe(row: int) -> str:
        return ", ".join(f"{slot_id} {report.stage.name}" for slot_id, report in env.reports(row).items())

    return describe
