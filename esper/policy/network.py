"""The recurrent growth policy: encoder, LSTM, factored action heads and critic.

Axis legend: N = environments, T = steps, D = features, S = slots, H = LSTM width, ... = N, or N x T.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES
from esper.envs.features import num_features as num_features_of
from esper.growth.actions import NUM_OPS, ActionMasks, Head
from esper.policy.distributions import MaskedCategorical, RowDescription
from esper.policy.heads import SLOT_HEADS, ActionHeads, ValueHead, orthogonal_linear
from esper.runtime.precision import autocast

Hidden = tuple[Tensor, Tensor]
"""LSTM state (h, c), each ``float [N, H]``."""

CRITICS = ("op", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult:
    """One step of acting, detached.

    Attributes:
        actions: ``int64 [N, 8]``, 0 in heads that do not matter.
        log_prob: ``float32 [N, 8]``, exactly 0 in heads that do not matter.
        entropy: ``float32 [N, 8]``, divided by log(number legal); exactly 0 in heads that do not matter.
        value: ``float32 [N]``, V(s).
        q: ``float32 [N]``, Q(s, o) of the chosen op, or V(s) with the state critic.
        hidden: LSTM state after this step.
    """

    actions: Tensor
    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    q: Tensor
    hidden: Hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Recorded actions under the present parameters, with gradient.

    Attributes:
        log_prob: ``float32 [N, T, 8]``, exactly 0 in heads that do not matter.
        entropy: ``float32 [N, T, 8]``, divided by log(number legal); exactly 0 in heads that do not matter.
        q: ``float32 [N, T]``, Q(s, o) of the recorded op, or V(s) with the state critic.
        num_legal: ``int64 [N, T, 8]``, legal choices; 0 in heads that do not matter.
    """

    log_prob: Tensor
    entropy: Tensor
    q: Tensor
    num_legal: Tensor


class GrowthPolicy(nn.Module):
    """Recurrent actor-critic over factored actions.

    Features are 31 of the environment, 30 per slot, then ``num_probes`` per slot: D = 31 + (30 + num_probes) S.

    Args:
        num_features: D.
        num_slots: S.
        num_blueprints: choices of the blueprint head; index ``num_blueprints`` embeds an empty slot.
        num_probes: features per slot in the block after the slots.
        embedding_dim: width of a blueprint's embedding.
        encoder_dim: width of the encoder.
        lstm_dim: H.
        head_dim: hidden width of every head but the blueprint head.
        blueprint_head_dims: hidden widths of the blueprint head.
        value_dim: hidden width of the value head.
        conditional_heads: whether later heads see what earlier ones chose.
        slot_head: ``"flat"``, a logit per slot from the trunk; ``"pointer"``, a score of each slot's own features by
            weights that all slots share.
        autocast_dtype: what products compute in, when acting and in the update alike; ``None`` = the parameters' type.
            Distributions, log-probabilities, entropies and values come out in fp32.
        critic: ``"op"`` fits Q(s, o) and takes V(s) as its mean under the masked op distribution; ``"state"`` fits V.

    Raises:
        ValueError: unknown critic or slot head, or ``num_features`` does not follow from slots and probes.
    """

    def __init__(
        self,
        num_features: int,
        num_slots: int,
        num_blueprints: int,
        *,
        num_probes: int = 0,
        embedding_dim: int = 4,
        encoder_dim: int = 256,
        lstm_dim: int = 256,
        head_dim: int = 128,
        blueprint_head_dims: Sequence[int] = (256, 128),
        value_dim: int = 128,
        conditional_heads: bool = True,
        slot_head: str = "pointer",
        critic: str = "op",
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if critic not in CRITICS:
            raise ValueError(f"critic '{critic}' is unknown; choose one of {', '.join(CRITICS)}")
        if slot_head not in SLOT_HEADS:
            raise ValueError(f"slot head '{slot_head}' is unknown; choose one of {', '.join(SLOT_HEADS)}")
        expected = num_features_of(num_slots, num_probes)
        if num_features != expected:
            raise ValueError(f"{num_slots} slots with {num_probes} probes have {expected} features, not {num_features}")
        self.num_features, self.num_slots, self.num_blueprints = num_features, num_slots, num_blueprints
        self.num_probes, self.lstm_dim, self.autocast_dtype = num_probes, lstm_dim, autocast_dtype

        self.embedding = nn.Embedding(num_blueprints + 1, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.encoder = nn.Sequential(
            orthogonal_linear(num_features + num_slots * embedding_dim, encoder_dim, sqrt(2)),
            nn.LayerNorm(encoder_dim),
            nn.ReLU(),
        )
        self.lstm = nn.LSTM(encoder_dim, lstm_dim, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.trunk_norm = nn.LayerNorm(lstm_dim)
        slot_dim = NUM_SLOT_FEATURES + num_probes + embedding_dim
        self.heads = ActionHeads(
            lstm_dim, num_slots, num_blueprints, slot_dim, head_dim, blueprint_head_dims, conditional_heads, slot_head
        )
        self.value_head = ValueHead(lstm_dim, value_dim, NUM_OPS if critic == "op" else 0)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile encoder and heads in place; the LSTM stays with its library and the state dict is unchanged.

        Args:
            *args: as :func:`torch.compile`.
            **kwargs: as :func:`torch.compile`.
        """
        for part in (self.encoder, *self.heads.networks.values(), self.value_head):
            part.compile(*args, **kwargs)

    def initial_state(self, num_envs: int, device: torch.device | str | None = None) -> Hidden:
        """The zero state in which every episode starts."""
        device = self.trunk_norm.weight.device if device is None else device
        return torch.zeros(num_envs, self.lstm_dim, device=device), torch.zeros(num_envs, self.lstm_dim, device=device)

    @torch.no_grad()
    def act(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        hidden: Hidden,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        describe_row: RowDescription | None = None,
    ) -> ActResult:
        """Choose one action per environment.

        Args:
            features: ``float32 [N, D]``, normalised.
            blueprint_index: ``int64 [N, S]``, -1 = none.
            masks: what is legal now.
            hidden: LSTM state before this step.
            generator: source of all randomness.
            deterministic: take the mode of each head, in the order of sampling.
            describe_row: environment row to text (its stages, say), for errors.

        Raises:
            ValueError: a head that matters has no legal choice.
        """

        def choose(head: Head, distribution: MaskedCategorical) -> Tensor:
            return distribution.mode() if deterministic else distribution.sample(generator)

        with self._autocast():
            trunk, slot_inputs, hidden = self._step(features, blueprint_index, hidden)
            walk = self.heads.walk(trunk, slot_inputs, masks, choose, describe_row)
            q = self.value_head(trunk)
        return ActResult(
            actions=walk.actions,
            log_prob=walk.log_prob,
            entropy=walk.entropy,
            value=_expected_value(q, walk.op),
            q=_value_of(q, walk.actions[..., Head.OP]),
            hidden=hidden,
        )

    @torch.no_grad()
    def value(self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden) -> Tensor:
        """V(s) for bootstraps, ``float32 [N]``; arguments as :meth:`act`. The caller's hidden state stays as it is."""
        with self._autocast():
            trunk, _, _ = self._step(features, blueprint_index, hidden)
            return _expected_value(self.value_head(trunk), self.heads.op_distribution(trunk, masks))

    def evaluate(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        actions: Tensor,
        hidden: Hidden,
        ends: Tensor,
    ) -> Evaluation:
        """Recompute what :meth:`act` recorded, by the same walk over the heads.

        Args:
            features: ``float32 [N, T, D]``, normalised.
            blueprint_index: ``int64 [N, T, S]``, -1 = none.
            masks: leading shape ``[N, T]``.
            actions: ``int64 [N, T, 8]``, canonical.
            hidden: LSTM state before the first step.
            ends: ``bool [N, T]``, the episode ended with this step, so that the next one starts from zeros.
        """
        with self._autocast():
            vectors = self._embed(blueprint_index)
            trunk, _ = self._recur(self._encode(features, vectors), hidden, ends)
            slot_inputs = self._slot_inputs(features, vectors)
            walk = self.heads.walk(trunk, slot_inputs, masks, lambda head, _: actions[..., head])
            q = _value_of(self.value_head(trunk), actions[..., Head.OP])
        return Evaluation(log_prob=walk.log_prob, entropy=walk.entropy, q=q, num_legal=walk.num_legal)

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.trunk_norm.weight.device, self.autocast_dtype)

    def _step(self, features: Tensor, blueprint_index: Tensor, hidden: Hidden) -> tuple[Tensor, Tensor, Hidden]:
        """One time step: trunk ``[N, H]``, slot inputs ``[N, S, F]`` and the next hidden state."""
        vectors = self._embed(blueprint_index)
        trunk, hidden = self._recur(self._encode(features, vectors).unsqueeze(1), hidden, None)
        return trunk.squeeze(1), self._slot_inputs(features, vectors), hidden

    def _embed(self, blueprint_index: Tensor) -> Tensor:
        index = torch.where(blueprint_index < 0, self.num_blueprints, blueprint_index)
        vectors: Tensor = self.embedding(index)  # (..., S, embedding_dim)
        return vectors

    def _encode(self, features: Tensor, vectors: Tensor) -> Tensor:
        if features.shape[-1] != self.num_features:
            raise ValueError(f"the policy takes {self.num_features} features, the observation has {features.shape[-1]}")
        encoded: Tensor = self.encoder(torch.cat([features, vectors.flatten(-2)], -1))
        return encoded

    def _slot_inputs(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Features, probes and blueprint embedding of each slot, ``[..., S, F]``."""
        probes_at = NUM_BASE_FEATURES + self.num_slots * NUM_SLOT_FEATURES
        shape = (*features.shape[:-1], self.num_slots)
        slots = features[..., NUM_BASE_FEATURES:probes_at].reshape(*shape, NUM_SLOT_FEATURES)
        probes = features[..., probes_at:].reshape(*shape, self.num_probes)
        return torch.cat([slots, probes, vectors], -1)

    def _recur(self, encoded: Tensor, hidden: Hidden, ends: Tensor | None) -> tuple[Tensor, Hidden]:
        """Run the LSTM over ``[N, T, encoder_dim]``, from zeros after every end.

        One library call as long as no episode ends before the last step; otherwise one per stretch between the steps
        at which any environment restarts.
        """
        num_steps = encoded.shape[1]
        # Reading the restarts waits for the device, once per evaluation.
        restarts: list[int] = [] if ends is None else (ends[:, :-1].any(0).nonzero().flatten() + 1).tolist()
        outputs = []
        for start, stop in zip([0, *restarts], [*restarts, num_steps], strict=True):
            if start > 0 and ends is not None:
                restarted = ends[:, start - 1, None]
                hidden = hidden[0].masked_fill(restarted, 0), hidden[1].masked_fill(restarted, 0)
            state = hidden[0].unsqueeze(0), hidden[1].unsqueeze(0)  # (layers, N, H), as the library wants
            output, (h, c) = self.lstm(encoded[:, start:stop], state)
            outputs.append(output)
            hidden = h.squeeze(0), c.squeeze(0)
        trunk: Tensor = self.trunk_norm(outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1))
        return trunk, hidden


def _expected_value(q: Tensor, op: MaskedCategorical) -> Tensor:
    """V(s) = sum over ops of pi(o|s) Q(s, o); a state critic's single value is V already."""
    return q.float().squeeze(-1) if q.shape[-1] == 1 else (op.log_probs.exp() * q.float()).sum(-1)


def _value_of(q: Tensor, op: Tensor) -> Tensor:
    """Q(s, o) of the given op, or V(s) of a state critic."""
    return q.float().squeeze(-1) if q.shape[-1] == 1 else q.float().gather(-1, op.unsqueeze(-1)).squeeze(-1)
