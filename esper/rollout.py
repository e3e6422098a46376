"""Collecting a rollout: the policy acts, the hosts train, the buffer fills.

Axis legend: E = environments, T = steps, D = features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.policy import GrowthPolicy, Hidden, Normaliser
from esper.ppo import RolloutBuffer

OnStep = Callable[[Observation, Tensor, StepResult], None]
"""Called with what the controller saw, the actions ``int64 [E, 8]``, and what they led to."""


@dataclass(slots=True)
class Carry:
    """What passes from one rollout to the next: environments go on in mid-episode."""

    observation: Observation
    hidden: Hidden


def collect(
    env: GrowthEnv,
    policy: GrowthPolicy,
    normaliser: Normaliser,
    buffer: RolloutBuffer,
    carry: Carry,
    generator: torch.Generator,
    on_step: OnStep,
) -> Tensor:
    """Fill the buffer with T steps of every environment; moves ``carry`` on.

    Environments are reset where, and only where, their episode ended; so is the policy's memory.

    Returns:
        Raw features ``float32 [E, T, D]``, for the normaliser to take in after the update.
    """
    device = carry.hidden[0].device
    buffer.start(carry.hidden)
    raw = []
    for step in range(buffer.num_steps):
        seen = carry.observation.to(device)
        raw.append(seen.features)
        features = normaliser(seen.features)
        act = policy.act(
            features, seen.blueprint_index, seen.masks, carry.hidden, generator, describe_row=_stages_of(env)
        )
        actions = act.actions.cpu()
        result = env.step(actions)
        on_step(carry.observation, actions, result)
        terminated = result.terminated.to(device)
        bootstrap = None
        if step + 1 == buffer.num_steps:
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
    return torch.stack(raw, dim=1)


def _stages_of(env: GrowthEnv) -> Callable[[int], str]:
    """Names an environment's stages when its masks turn out to be broken."""

    def describe(row: int) -> str:
        return ", ".join(f"{slot_id} {report.stage.name}" for slot_id, report in env.reports(row).items())

    return describe
