"""A tiny world with factored actions and memory: name the slot and blueprint that were shown when the episode began.

Reward 1 for GERMINATE with the cued slot and blueprint, on each of the steps of an episode. A random legal policy earns
1/27 per step that has a choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.algorithms import RolloutBuffer
from esper.envs.features import num_features
from esper.growth.actions import NUM_BLUEPRINTS, NUM_OPS, OP_CULL, OP_GERMINATE, OP_WAIT, ActionMasks, Head
from esper.policy import GrowthPolicy, Hidden

NUM_SLOTS = 3
NUM_FEATURES = num_features(NUM_SLOTS)
CUED_BLUEPRINTS = torch.tensor([1, 3, 4])


class CueWorld:
    """Environments whose episodes start staggered, so that they end in the middle of rollouts."""

    def __init__(self, num_envs: int, episode_length: int = 3, forced_share: float = 0.2, seed: int = 0) -> None:
        self.num_envs, self.episode_length, self.forced_share = num_envs, episode_length, forced_share
        self.generator = torch.Generator().manual_seed(seed)
        self.age = torch.arange(num_envs) % episode_length
        self.slot, self.kind = self._draw(), self._draw()

    def _draw(self) -> Tensor:
        return torch.randint(3, (self.num_envs,), generator=self.generator)

    def observe(self) -> tuple[Tensor, Tensor, ActionMasks]:
        """Return features (the cue at age 0 only), blueprint indices and masks; on some steps only WAIT is legal."""
        features = torch.zeros(self.num_envs, NUM_FEATURES)
        rows, shown = torch.arange(self.num_envs), (self.age == 0).float()
        features[rows, self.slot] = shown
        features[rows, 3 + self.kind] = shown
        free = torch.rand(self.num_envs, generator=self.generator) >= self.forced_share
        op = torch.zeros(self.num_envs, NUM_OPS, dtype=torch.bool)
        op[:, OP_WAIT] = True
        op[:, OP_GERMINATE] = op[:, OP_CULL] = free
        slot = op.unsqueeze(-1).expand(-1, -1, NUM_SLOTS).clone()
        slot[:, OP_WAIT] = False
        blueprint = torch.zeros(self.num_envs, NUM_SLOTS, NUM_BLUEPRINTS, dtype=torch.bool)
        blueprint[..., CUED_BLUEPRINTS] = True
        index = torch.full((self.num_envs, NUM_SLOTS), -1)
        alpha = torch.zeros(self.num_envs, NUM_SLOTS)
        return features, index, ActionMasks(op=op, slot=slot, blueprint=blueprint, alpha=alpha)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards ``[E]`` and ended episodes ``bool [E]``; ended environments restart."""
        hit = actions[:, Head.OP] == OP_GERMINATE
        hit &= actions[:, Head.SLOT] == self.slot
        hit &= actions[:, Head.BLUEPRINT] == CUED_BLUEPRINTS[self.kind]
        self.age = (self.age + 1) % self.episode_length
        ended = self.age == 0
        self.slot, self.kind = torch.where(ended, self._draw(), self.slot), torch.where(ended, self._draw(), self.kind)
        return hit.float(), ended


def small_policy(**kwargs: object) -> GrowthPolicy:
    torch.manual_seed(0)
    sizes = {"encoder_dim": 32, "lstm_dim": 32, "head_dim": 32, "blueprint_head_dims": (32,), "value_dim": 32}
    return GrowthPolicy(NUM_SLOTS, NUM_BLUEPRINTS, **(sizes | kwargs))


def new_buffer(num_envs: int, num_steps: int) -> RolloutBuffer:
    return RolloutBuffer(num_envs, num_steps, NUM_FEATURES, NUM_SLOTS, NUM_BLUEPRINTS, state_dim=32)


def collect(
    policy: GrowthPolicy, world: CueWorld, buffer: RolloutBuffer, hidden: Hidden, generator: torch.Generator
) -> Hidden:
    """Fill the buffer, and return the hidden state for the next rollout."""
    buffer.start(hidden)
    features, index, masks = world.observe()
    for _ in range(buffer.num_steps):
        act = policy.act(features, index, masks, hidden, generator)
        reward, ended = world.step(act.actions)
        seen, seen_index, seen_masks = features, index, masks
        features, index, masks = world.observe()
        buffer.add(
            features=seen,
            blueprint_index=seen_index,
            masks=seen_masks,
            act=act,
            reward=reward,
            terminated=ended,
            truncated=torch.zeros_like(ended),
            bootstrap_value=policy.value(features, index, masks, act.hidden),
        )
        running = ~ended.unsqueeze(-1)
        hidden = act.hidden[0] * running, act.hidden[1] * running
    return hidden


def filled_buffer(
    policy: GrowthPolicy, num_envs: int = 8, num_steps: int = 9, forced_share: float = 0.2
) -> RolloutBuffer:
    """Collect a rollout of the policy from fresh environments."""
    buffer, world = new_buffer(num_envs, num_steps), CueWorld(num_envs, forced_share=forced_share)
    collect(policy, world, buffer, policy.initial_state(num_envs), torch.Generator().manual_seed(1))
    return buffer
