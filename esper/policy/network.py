"""The recurrent growth policy: encoder, LSTM, factored action heads and critic.

Axis legend: N = environments, T = steps, D = features, S = slots, H = LSTM width, R = recurrent states of an
environment, ... = N, or N x T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, num_features
from esper.growth.actions import NUM_OPS, ActionMasks, Head, head_sizes
from esper.policy.bodies import BODIES, Seen, Sizes
from esper.policy.distributions import (
    Distribution,
    MaskedCategorical,
    RowDescription,
    gumbel_noise,
    require_choices,
)
from esper.policy.greedy import GreedyRule
from esper.policy.heads import ActionHeads, ValueHead, Walk, orthogonal_linear
from esper.runtime.choices import known
from esper.runtime.options import BodyName, Critic, SlotHead
from esper.runtime.precision import autocast

Hidden = tuple[Tensor, Tensor]
"""LSTM state (h, c), each ``float [N, R * H]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult:
    """Result of one acting step, detached from the graph.

    Attributes:
        actions: ``int64 [N, 8]``, 0 in heads that do not matter.
        log_prob: ``float32 [N, 8]``, exactly 0 in heads that do not matter.
        value: ``float32 [N]``, V(s).
        q: ``float32 [N]``, Q(s, o) of the chosen op, or V(s) with the state critic.
        hidden: LSTM state after this step.
    """

    actions: Tensor
    log_prob: Tensor
    value: Tensor
    q: Tensor
    hidden: Hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Recorded actions evaluated under the current parameters, with gradient.

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

    Features are those of the environment, of every slot, ``num_probes`` for each slot, then the price if it is observed
    (:mod:`esper.envs.features`).

    Args:
        num_slots: S.
        num_blueprints: choices of the blueprint head; index ``num_blueprints`` embeds an empty slot.
        num_probes: features per slot in the block after the slots.
        price: true if the last feature is the price of size.
        embedding_dim: width of a blueprint's embedding.
        encoder_dim: width of the encoder.
        lstm_dim: H.
        head_dim: hidden width of every head but the blueprint head.
        blueprint_head_dims: hidden widths of the blueprint head.
        value_dim: hidden width of the value head.
        conditional_heads: let later heads see the choices of earlier ones.
        slot_head: ``"flat"``, a logit per slot from the trunk; ``"pointer"``, a score of each slot's own features by
            weights that all slots share.
        autocast_dtype: type of matrix products, both in acting and in the update; ``None`` = the parameters' type.
            Distributions, log-probabilities, entropies and values come out in fp32.
        critic: ``"op"`` fits Q(s, o) and takes V(s) as its mean under the masked op distribution; ``"state"`` fits V.
        body: ``"flat"``, for one number of slots; ``"shared"``, whose weights are those of every number of slots and
            which treats slots alike (:mod:`esper.policy.bodies`).
        slot_depth: tell a shared body the relative depth of each slot.
        choices: indices left to a head, for heads that lack some.
        initial_op_logits: logits of the ops in a new policy, 0 by default.

    Raises:
        ValueError: unknown body, critic or slot head, or a shared body with a flat slot head.
    """

    def __init__(
        self,
        num_slots: int,
        num_blueprints: int,
        *,
        num_probes: int = 0,
        price: bool = False,
        embedding_dim: int = 4,
        encoder_dim: int = 256,
        lstm_dim: int = 256,
        head_dim: int = 128,
        blueprint_head_dims: Sequence[int] = (256, 128),
        value_dim: int = 128,
        conditional_heads: bool = True,
        slot_head: str = "pointer",
        critic: str = "op",
        body: str = "flat",
        slot_depth: bool = True,
        choices: Mapping[Head, Sequence[int]] | None = None,
        initial_op_logits: Sequence[float] = (0.0,) * NUM_OPS,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        known("body", body, BodyName)
        known("critic", critic, Critic)
        known("slot_head", slot_head, SlotHead)
        if body == BodyName.shared and slot_head == SlotHead.flat:
            raise ValueError("slot_head='flat' has a logit for each slot, and body='shared' any number: use 'pointer'")
        self.num_features = num_features(num_slots, num_probes, price)
        self.num_slots, self.num_blueprints = num_slots, num_blueprints
        self.num_probes, self.lstm_dim, self.autocast_dtype = num_probes, lstm_dim, autocast_dtype
        self._body = BODIES[BodyName(body)](
            Sizes(
                num_slots=num_slots,
                num_common=self.num_features - num_slots * (NUM_SLOT_FEATURES + num_probes),
                slot_dim=NUM_SLOT_FEATURES + num_probes + embedding_dim,
                lstm_dim=lstm_dim,
            ),
            slot_depth,
        )

        self.embedding = nn.Embedding(num_blueprints + 1, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.encoder = nn.Sequential(
            orthogonal_linear(self._body.num_inputs, encoder_dim, sqrt(2)),
            nn.LayerNorm(encoder_dim),
            nn.ReLU(),
        )
        self.lstm = _orthogonal_lstm(encoder_dim, lstm_dim)
        self.trunk_norm = nn.LayerNorm(lstm_dim)
        self.heads = ActionHeads(
            self._body.trunk_dim,
            num_slots,
            num_blueprints,
            self._body.slot_dim,
            head_dim,
            blueprint_head_dims,
            conditional_heads,
            slot_head,
            self._body.numbered,
            choices or {},
            initial_op_logits,
        )
        self.value_head = ValueHead(self._body.trunk_dim, value_dim, NUM_OPS if critic == Critic.op else 0)

    @property
    def state_dim(self) -> int:
        """Width of the recurrent state of an environment, R * H."""
        return self._body.num_rows * self.lstm_dim

    @property
    def for_any_slots(self) -> bool:
        """True if the weights are the same for every number of slots."""
        return not self._body.numbered

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile encoder and heads in place; the LSTM keeps its library kernel, and the state dict is unchanged.

        Args:
            *args: as :func:`torch.compile`.
            **kwargs: as :func:`torch.compile`.
        """
        for part in (self.encoder, *self.heads.networks.values(), self.value_head):
            part.compile(*args, **kwargs)

    def initial_state(self, num_envs: int, device: torch.device | str | None = None) -> Hidden:
        """Return the zero state in which every episode starts."""
        device = self.trunk_norm.weight.device if device is None else device
        return torch.zeros(num_envs, self.state_dim, device=device), torch.zeros(
            num_envs, self.state_dim, device=device
        )

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
        greedy: GreedyRule | None = None,
        given: Tensor | None = None,
    ) -> ActResult:
        """Choose one action per environment, or go along with actions that somebody else has chosen.

        Args:
            features: ``float32 [N, D]``, normalised.
            blueprint_index: ``int64 [N, S]``, -1 = none.
            masks: legal choices.
            hidden: LSTM state before this step.
            generator: source of all randomness.
            deterministic: take the mode of each head, in the order of sampling.
            describe_row: environment row to text (its stages, say), for errors.
            greedy: rule that chooses the op if ``deterministic``; ``None`` for its mode.
            given: legal actions ``int64 [N, 8]`` to take instead of choosing; nothing is drawn for them.

        Raises:
            ValueError: a head that matters has no legal choice.
        """

        noise: list[Tensor] = []
        if not deterministic and given is None:
            sizes = head_sizes(self.num_slots, self.num_blueprints)
            noise = gumbel_noise([(len(features), size) for size in sizes], generator, features.device)

        def choose(head: Head, distribution: Distribution) -> Tensor:
            if given is not None:
                return given[..., head]
            if not deterministic:
                return distribution.perturbed_mode(noise[head])
            if greedy is not None and head == Head.OP:
                assert isinstance(distribution, MaskedCategorical), "the op head always has logits"
                return greedy.choose(distribution)
            return distribution.mode()

        with self._autocast():
            trunk, slot_inputs, hidden = self._step(features, blueprint_index, masks, hidden)
            walk = self.heads.walk(trunk, slot_inputs, masks, choose, describe_row)
            q = self.value_head(trunk)
        return ActResult(
            actions=walk.actions,
            log_prob=walk.log_prob,
            value=_expected_value(q, walk.op),
            q=_value_of(q, walk.actions[..., Head.OP]),
            hidden=hidden,
        )

    @torch.no_grad()
    def value(self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden) -> Tensor:
        """Return V(s) for bootstrapping, ``float32 [N]``; arguments as for :meth:`act`. The given hidden state is not
        changed.
        """
        with self._autocast():
            trunk, _, _ = self._step(features, blueprint_index, masks, hidden)
            op = self.heads.op_distribution(trunk, masks)
            require_choices([op])
            return _expected_value(self.value_head(trunk), op)

    def evaluate(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        actions: Tensor,
        hidden: Hidden,
        ends: Tensor,
    ) -> Evaluation:
        """Recompute log-probabilities, entropies and values of actions recorded by :meth:`act`, with the same walk over
        the heads.

        Args:
            features: ``float32 [N, T, D]``, normalised.
            blueprint_index: ``int64 [N, T, S]``, -1 = none.
            masks: leading shape ``[N, T]``.
            actions: ``int64 [N, T, 8]``, canonical.
            hidden: LSTM state before the first step.
            ends: ``bool [N, T]``, the episode ended with this step, so that the next one starts from zeros.
        """
        with self._autocast():
            trunk, walk = self._walk(features, blueprint_index, masks, actions, hidden, ends)
            q = _value_of(self.value_head(trunk), actions[..., Head.OP])
        return Evaluation(log_prob=walk.log_prob, entropy=walk.entropy, q=q, num_legal=walk.num_legal)

    @torch.no_grad()
    def prefers(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        actions: Tensor,
        hidden: Hidden,
        ends: Tensor,
    ) -> Tensor:
        """Return which recorded actions are those of the most probable choices, ``bool [N, T]``; arguments as for
        :meth:`evaluate`.
        """
        with self._autocast():
            return self._walk(features, blueprint_index, masks, actions, hidden, ends)[1].modal

    def _walk(
        self,
        features: Tensor,
        blueprint_index: Tensor,
        masks: ActionMasks,
        actions: Tensor,
        hidden: Hidden,
        ends: Tensor,
    ) -> tuple[Tensor, Walk]:
        """Return trunk ``[N, T, trunk_dim]`` and the walk over the heads of recorded actions."""
        seen = self._seen(features, blueprint_index, masks)
        outputs, _ = self._recur(self.encoder(self._body.rows(seen)), hidden, ends)
        trunk, slot_inputs = self._body.outputs(outputs, seen)
        return trunk, self.heads.walk(trunk, slot_inputs, masks, lambda head, _: actions[..., head])

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.trunk_norm.weight.device, self.autocast_dtype)

    def _step(
        self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks, hidden: Hidden
    ) -> tuple[Tensor, Tensor, Hidden]:
        """Run one time step: return trunk ``[N, trunk_dim]``, slot inputs ``[N, S, slot_dim]`` and the next state."""
        seen = self._seen(features, blueprint_index, masks)
        outputs, hidden = self._recur(self.encoder(self._body.rows(seen)).unsqueeze(1), hidden, None)
        return *self._body.outputs(outputs.squeeze(1), seen), hidden

    def _seen(self, features: Tensor, blueprint_index: Tensor, masks: ActionMasks) -> Seen:
        """Take an observation apart."""
        if features.shape[-1] != self.num_features:
            raise ValueError(f"the policy takes {self.num_features} features, the observation has {features.shape[-1]}")
        vectors = self.embedding(torch.where(blueprint_index < 0, self.num_blueprints, blueprint_index))
        shape = (*features.shape[:-1], self.num_slots)
        widths = [NUM_BASE_FEATURES, self.num_slots * NUM_SLOT_FEATURES, self.num_slots * self.num_probes]
        base, slots, probes, rest = torch.split(features, [*widths, self.num_features - sum(widths)], -1)
        parts = [slots.reshape(*shape, NUM_SLOT_FEATURES), probes.reshape(*shape, self.num_probes), vectors]
        return Seen(
            features=features,
            common=torch.cat([base, rest], -1),
            vectors=vectors,
            slots=torch.cat(parts, -1),
            valid=masks.blueprint.any(-1),
        )

    def _recur(self, encoded: Tensor, hidden: Hidden, ends: Tensor | None) -> tuple[Tensor, Hidden]:
        """Run the LSTM over ``[N, T, R, encoder_dim]``, from zeros after every end; return ``[N, T, R, H]``.

        One library call as long as no episode ends before the last step; otherwise one per stretch between the steps
        at which any environment restarts.
        """
        num_envs, num_steps, num_rows = encoded.shape[:3]
        series = encoded.transpose(1, 2).flatten(0, 1)  # (N * R, T, encoder_dim)
        # Reading the restarts waits for the device, once per evaluation.
        restarts: list[int] = [] if ends is None else (ends[:, :-1].any(0).cpu().nonzero().flatten() + 1).tolist()
        outputs = []
        for start, stop in zip([0, *restarts], [*restarts, num_steps], strict=True):
            if start > 0 and ends is not None:
                restarted = ends[:, start - 1, None]
                hidden = hidden[0].masked_fill(restarted, 0), hidden[1].masked_fill(restarted, 0)
            h, c = (part.reshape(1, num_envs * num_rows, -1) for part in hidden)  # (layers, N * R, H)
            output, (h, c) = self.lstm(series[:, start:stop], (h, c))
            outputs.append(output)
            hidden = h.view(num_envs, -1), c.view(num_envs, -1)
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        trunk: Tensor = self.trunk_norm(joined.unflatten(0, (num_envs, num_rows)).transpose(1, 2))
        return trunk, hidden


def _orthogonal_lstm(num_inputs: int, width: int) -> nn.LSTM:
    """Make an LSTM with orthogonal weights and zero biases."""
    lstm = nn.LSTM(num_inputs, width, batch_first=True)
    for name, parameter in lstm.named_parameters():
        if "weight" in name:
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
    return lstm


def _expected_value(q: Tensor, op: MaskedCategorical) -> Tensor:
    """Return V(s) = sum over ops of pi(o|s) Q(s, o); the single value of a state critic is V already."""
    return q.float().squeeze(-1) if q.shape[-1] == 1 else (op.log_probs.exp() * q.float()).sum(-1)


def _value_of(q: Tensor, op: Tensor) -> Tensor:
    """Return Q(s, o) of the given op, or V(s) of a state critic."""
    return q.float().squeeze(-1) if q.shape[-1] == 1 else q.float().gather(-1, op.unsqueeze(-1)).squeeze(-1)
