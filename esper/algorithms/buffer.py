"""Storage of one rollout.

Axis legend: E = environments, T = steps, D = features, S = slots, B = blueprints, H = width of the recurrent
state, n = some of E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from esper.algorithms.gae import gae
from esper.growth.actions import NUM_HEADS, NUM_OPS, ActionMasks
from esper.policy.network import ActResult, Evaluation, GrowthPolicy, Hidden
from esper.runtime.state import State, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """A rollout of whole environments over all time steps, of some or all environments.

    Attributes:
        features: ``float32 [n, T, D]``, normalised.
        blueprint_index: ``int64 [n, T, S]``.
        masks: leading shape ``[n, T]``.
        actions: ``int64 [n, T, 8]``.
        log_prob: ``float32 [n, T, 8]``.
        value: ``float32 [n, T]``, V(s_t) under the rollout's policy.
        q: ``float32 [n, T]``, output of the critic: Q(s_t, o_t), or V(s_t) with the state critic.
        reward: ``float32 [n, T]``.
        terminated: ``bool [n, T]``.
        truncated: ``bool [n, T]``.
        bootstrap_value: ``float32 [n, T]``, V of the true next state where truncated and at the last step.
        hidden: LSTM state before the first step, each ``[n, H]``.
    """

    features: Tensor
    blueprint_index: Tensor
    masks: ActionMasks
    actions: Tensor
    log_prob: Tensor
    value: Tensor
    q: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    bootstrap_value: Tensor
    hidden: Hidden

    @property
    def ends(self) -> Tensor:
        """Steps with which an episode ended, ``bool [n, T]``."""
        return self.terminated | self.truncated

    @property
    def num_legal_ops(self) -> Tensor:
        """Number of legal ops in each step, ``int64 [n, T]``."""
        return self.masks.op.sum(-1)

    @property
    def choice(self) -> Tensor:
        """Steps with more than one legal op, ``bool [n, T]``."""
        return self.num_legal_ops > 1

    def evaluate(self, policy: GrowthPolicy) -> Evaluation:
        """Evaluate a policy on these steps, with gradients."""
        return policy.evaluate(self.features, self.blueprint_index, self.masks, self.actions, self.hidden, self.ends)

    def prefers(self, policy: GrowthPolicy) -> Tensor:
        """Return in which steps a policy's most probable choices are the action taken, ``bool [n, T]``."""
        return policy.prefers(self.features, self.blueprint_index, self.masks, self.actions, self.hidden, self.ends)

    def advantages(self, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
        """Estimate advantages and returns, ``float [n, T]`` each; see :func:`~esper.algorithms.gae.gae`."""
        return gae(self.reward, self.value, self.bootstrap_value, self.terminated, self.truncated, gamma, gae_lambda)

    def __getitem__(self, envs: Tensor) -> RolloutBatch:
        """Select environments, ``envs: int64 [n]``."""
        return RolloutBatch(
            features=self.features[envs],
            blueprint_index=self.blueprint_index[envs],
            masks=self.masks[envs],
            actions=self.actions[envs],
            log_prob=self.log_prob[envs],
            value=self.value[envs],
            q=self.q[envs],
            reward=self.reward[envs],
            terminated=self.terminated[envs],
            truncated=self.truncated[envs],
            bootstrap_value=self.bootstrap_value[envs],
            hidden=(self.hidden[0][envs], self.hidden[1][envs]),
        )


class RolloutBuffer:
    """Preallocated storage, filled step by step: :meth:`start`, then T times :meth:`add`, then :attr:`data`.

    Args:
        num_envs: E.
        num_steps: T.
        num_features: D.
        num_slots: S.
        num_blueprints: B.
        state_dim: H.
        device: device of the storage.
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int,
        num_features: int,
        num_slots: int,
        num_blueprints: int,
        state_dim: int,
        device: torch.device | str = "cpu",
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(num_envs, num_steps, *shape, dtype=dtype, device=device)

        self.num_envs, self.num_steps = num_envs, num_steps
        self._cursor = 0
        self._data = RolloutBatch(
            features=zeros(num_features),
            blueprint_index=zeros(num_slots, dtype=torch.int64),
            masks=ActionMasks(
                op=zeros(NUM_OPS, dtype=torch.bool),
                slot=zeros(NUM_OPS, num_slots, dtype=torch.bool),
                blueprint=zeros(num_slots, num_blueprints, dtype=torch.bool),
                alpha=zeros(num_slots),
            ),
            actions=zeros(NUM_HEADS, dtype=torch.int64),
            log_prob=zeros(NUM_HEADS),
            value=zeros(),
            q=zeros(),
            reward=zeros(),
            terminated=zeros(dtype=torch.bool),
            truncated=zeros(dtype=torch.bool),
            bootstrap_value=zeros(),
            hidden=(torch.zeros(num_envs, state_dim, device=device), torch.zeros(num_envs, state_dim, device=device)),
        )

    @property
    def full(self) -> bool:
        """True if all T steps are stored."""
        return self._cursor == self.num_steps

    @property
    def data(self) -> RolloutBatch:
        """The whole rollout, as views of the storage, which the next rollout overwrites."""
        assert self.full, f"the rollout has {self._cursor} of {self.num_steps} steps"
        return self._data

    @property
    def size(self) -> int:
        """Number of stored steps."""
        return self._cursor

    def clear(self) -> None:
        """Remove all steps."""
        for stored in self._columns().values():
            stored.zero_()
        self._cursor = 0

    def state_dict(self) -> State:
        """Return the stored steps, ``[E, t, ...]`` each, and the LSTM state before the first, ``[E, H]``."""
        return {"hidden": [copied(part) for part in self._data.hidden]} | {
            name: copied(stored[:, : self._cursor]) for name, stored in self._columns().items()
        }

    def load_state_dict(self, state: State) -> None:
        """Replace the stored steps by those of a saved state."""
        self.start(tuple(state["hidden"]))
        self._cursor = state["reward"].shape[1]
        for name, stored in self._columns().items():
            stored[:, : self._cursor] = state[name]

    def _columns(self) -> dict[str, Tensor]:
        """Return all storage with a time axis, ``[E, T, ...]``, by name."""
        data = {item.name: getattr(self._data, item.name) for item in fields(self._data)}
        masks = data.pop("masks")
        data.pop("hidden")
        return data | {f"masks.{item.name}": getattr(masks, item.name) for item in fields(masks)}

    def start(self, hidden: Hidden) -> None:
        """Start a rollout with the LSTM state before its first step."""
        for stored, given in zip(self._data.hidden, hidden, strict=True):
            stored.copy_(given)
        self._cursor = 0

    def add(
        self,
        *,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        act: ActResult,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        bootstrap_value: Tensor | None = None,
    ) -> None:
        """Store one step of all environments. What is on the CPU is copied without waiting for the device.

        Args:
            features: ``float32 [E, D]``, normalised, the policy's input.
            blueprint_index: ``int64 [E, S]``.
            masks: the policy's masks.
            act: the policy's output.
            reward: ``float [E]``, scaled.
            terminated: ``bool [E]``.
            truncated: ``bool [E]``; on the CPU, checking it waits for no device.
            bootstrap_value: ``float [E]``, V of the true next state; needed where truncated and at the last step.
        """
        step, data = self._cursor, self._data
        assert step < self.num_steps, "the rollout is full: start() a new one"
        assert bootstrap_value is not None or step + 1 < self.num_steps, "the last step needs a bootstrap value"
        assert bootstrap_value is not None or not truncated.any(), "a truncated step needs a bootstrap value"
        pairs = (
            (data.features, features),
            (data.blueprint_index, blueprint_index),
            (data.masks.op, masks.op),
            (data.masks.slot, masks.slot),
            (data.masks.blueprint, masks.blueprint),
            (data.masks.alpha, masks.alpha),
            (data.actions, act.actions),
            (data.log_prob, act.log_prob),
            (data.value, act.value),
            (data.q, act.q),
            (data.reward, reward),
            (data.terminated, terminated),
            (data.truncated, truncated),
            (data.bootstrap_value, torch.zeros_like(act.value) if bootstrap_value is None else bootstrap_value),
        )
        for stored, given in pairs:
            stored[:, step].copy_(given.detach(), non_blocking=True)
        self._cursor += 1

    def minibatches(self, num_minibatches: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Divide the environments at random.

        Args:
            num_minibatches: parts, whose sizes differ by at most one.
            generator: source of randomness, on the CPU, so that the order is the same for every device.

        Returns:
            Environment indices ``int64 [n]`` per part, on the CPU.

        Raises:
            ValueError: more minibatches than environments.
        """
        if num_minibatches > self.num_envs:
            raise ValueError(f"num_minibatches={num_minibatches} is above the number of environments, {self.num_envs}")
        return torch.randperm(self.num_envs, generator=generator).tensor_split(num_minibatches)


def minibatch_sizes(orders: Sequence[Sequence[Tensor]], counted: Tensor) -> Tensor:
    """Count the steps of each minibatch, and those that are counted, ``float64 [passes, minibatches, 2]``.

    Args:
        orders: environments of each minibatch of each pass (:meth:`RolloutBuffer.minibatches`).
        counted: ``bool [E, T]``, on the CPU like all of it.
    """
    num_steps, own = counted.shape[1], counted.sum(1)
    counts = [[(len(envs) * num_steps, int(own[envs].sum())) for envs in order] for order in orders]
    return torch.tensor(counts, dtype=torch.float64)
