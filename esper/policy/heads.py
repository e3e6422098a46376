"""The eight action heads: their networks, and the single walk over them that samples, takes modes or evaluates.

Axis legend: ... = environments, or environments x steps, S = slots, F = inputs per slot, H = trunk width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.growth.actions import HEADS, NUM_HEADS, NUM_OPS, ActionMasks, Head, head_sizes, op_head_table, relevance
from esper.policy.distributions import (
    Distribution,
    MaskedCategorical,
    RowDescription,
    SingleChoice,
    require_choices,
)
from esper.runtime.options import SlotHead

Choose = Callable[[Head, Distribution], Tensor]
"""Function that picks one index per row of a head's distribution."""


def orthogonal_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """Make a linear layer with orthogonal weights and zero bias."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def head_mlp(sizes: Sequence[int], biases: Sequence[float] | None = None) -> nn.Sequential:
    """Make linear layers with ReLU between; gain 0.01 on the last, so that a new policy nearly has the logits
    ``biases``, by default 0.
    """
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes[:-1]):
        layers += [orthogonal_linear(num_inputs, num_outputs, sqrt(2)), nn.ReLU()]
    last = orthogonal_linear(sizes[-2], sizes[-1], 0.01)
    if biases is not None:
        with torch.no_grad():
            last.bias.copy_(torch.tensor(biases))
    return nn.Sequential(*layers, last)


class PointerHead(nn.Module):
    """One score per slot, computed from the slot's own inputs with weights shared by all slots (Vinyals et al. 2015).

    What is learned for one slot applies to all. With the slot's number among its inputs, scores can depend on the
    position, and the weights belong to one S.

    Args:
        num_inputs: common inputs, I.
        num_numbers: S, or 0 without slots' numbers.
        slot_dim: F.
        hidden_dim: width of the hidden layer.
    """

    def __init__(self, num_inputs: int, num_numbers: int, slot_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.score = head_mlp((num_inputs + num_numbers + slot_dim, hidden_dim, 1))
        self.numbers: Tensor
        self.register_buffer("numbers", torch.eye(num_numbers), persistent=False)

    def forward(self, inputs: Tensor, slot_inputs: Tensor) -> Tensor:
        """Map ``[..., I]`` and ``[..., S, F]`` to logits ``[..., S]``."""
        shape = slot_inputs.shape[:-1]
        common = inputs.unsqueeze(-2).expand(*shape, inputs.shape[-1])
        parts = [common, slot_inputs.to(inputs.dtype)]
        if len(self.numbers):
            parts.insert(1, self.numbers.to(inputs.dtype).expand(*shape, -1))
        scores: Tensor = self.score(torch.cat(parts, -1))
        return scores.squeeze(-1)


class ValueHead(nn.Module):
    """Q(s, o) for every op at once, or V(s).

    Args:
        trunk_dim: width of the trunk.
        hidden_dim: width of the hidden layer.
        num_ops: 6 for Q(s, o), whose input is trunk and one-hot(o); 0 for V(s).
    """

    def __init__(self, trunk_dim: int, hidden_dim: int, num_ops: int) -> None:
        super().__init__()
        self.trunk_dim = trunk_dim
        self.hidden = orthogonal_linear(trunk_dim + num_ops, hidden_dim, sqrt(2))
        self.output = orthogonal_linear(hidden_dim, 1, 1.0)

    def forward(self, trunk: Tensor) -> Tensor:
        """Map ``[..., H]`` to ``[..., 6]`` (ops), or ``[..., 1]`` without ops."""
        weight = self.hidden.weight
        hidden = functional.linear(trunk, weight[:, : self.trunk_dim], self.hidden.bias).unsqueeze(-2)  # (..., 1, V)
        if weight.shape[1] > self.trunk_dim:
            # A one-hot input selects a column: all ops share the product with the trunk.
            hidden = hidden + weight[:, self.trunk_dim :].T  # (..., 6, V)
        values: Tensor = self.output(hidden.relu())
        return values.squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Result of one pass over the heads.

    Attributes:
        actions: ``int64 [..., 8]``, 0 in heads that do not matter.
        relevant: ``bool [..., 8]``, heads that matter.
        distributions: those of the eight heads, the op's first.
    """

    actions: Tensor
    relevant: Tensor
    distributions: Sequence[Distribution]

    @property
    def op(self) -> MaskedCategorical:
        """Distribution of the op."""
        first = self.distributions[Head.OP]
        assert isinstance(first, MaskedCategorical), "the op head always has logits"
        return first

    @property
    def log_prob(self) -> Tensor:
        """Log-probabilities, ``float32 [..., 8]``, exactly 0 in heads that do not matter."""
        chosen = zip(self.distributions, self.actions.unbind(-1), strict=True)
        return self._only_relevant([each.log_prob(index) for each, index in chosen])

    @property
    def entropy(self) -> Tensor:
        """Entropies divided by log(number legal), ``float32 [..., 8]``; exactly 0 in heads that do not matter."""
        return self._only_relevant([each.entropy() for each in self.distributions])

    @property
    def modal(self) -> Tensor:
        """Actions in which every head that matters takes its most probable choice, ``bool [...]``."""
        modes = torch.stack([each.mode() for each in self.distributions], -1)
        return ((modes == self.actions) | ~self.relevant).all(-1)

    @property
    def num_legal(self) -> Tensor:
        """Number of legal choices, ``int64 [..., 8]``; 0 in heads that do not matter."""
        return self._only_relevant([each.num_legal for each in self.distributions])

    def _only_relevant(self, values: list[Tensor]) -> Tensor:
        return torch.where(self.relevant, torch.stack(values, -1), 0)


class ActionHeads(nn.Module):
    """Networks of the eight heads.

    With ``conditional`` heads the slot head also sees one-hot(op), and the six heads after it see one-hot(op),
    one-hot(slot) if ``numbered``, and the chosen slot's inputs. Otherwise every head sees the trunk only, and heads
    depend on each other through masks alone.

    Args:
        trunk_dim: width of the trunk.
        num_slots: S.
        num_blueprints: choices of the blueprint head.
        slot_dim: F.
        head_dim: hidden width of all heads but the blueprint head.
        blueprint_dims: hidden widths of the blueprint head.
        conditional: let later heads see earlier choices.
        slot_head: ``"flat"`` gives the slot head a logit per slot; ``"pointer"`` is a :class:`PointerHead`.
        numbered: tell heads the numbers of slots; without them a pointer head makes the weights independent of S.
        choices: indices left to a head, for heads that lack some. With one left, its log-probability and entropy are 0,
            and its network is not run where legality does not depend on the state.
        initial_op_logits: biases of the op head to start with.
    """

    def __init__(
        self,
        trunk_dim: int,
        num_slots: int,
        num_blueprints: int,
        slot_dim: int,
        head_dim: int,
        blueprint_dims: Sequence[int],
        conditional: bool,
        slot_head: str,
        numbered: bool,
        choices: Mapping[Head, Sequence[int]],
        initial_op_logits: Sequence[float],
    ) -> None:
        super().__init__()
        num_numbers = num_slots if numbered else 0
        self.op_vectors: Tensor
        self.slot_vectors: Tensor
        self.register_buffer("op_vectors", torch.eye(NUM_OPS), persistent=False)
        self.register_buffer("slot_vectors", torch.eye(num_numbers), persistent=False)
        self.conditional = conditional
        self.points = slot_head == SlotHead.pointer
        extra = {Head.OP: 0, Head.SLOT: NUM_OPS}
        self.networks = nn.ModuleDict()
        sizes = head_sizes(num_slots, num_blueprints)
        for head, size in zip(Head, sizes, strict=True):
            num_inputs = trunk_dim + (extra.get(head, NUM_OPS + num_numbers + slot_dim) if conditional else 0)
            if head == Head.SLOT and self.points:
                self.networks[HEADS[head]] = PointerHead(num_inputs, num_numbers, slot_dim, head_dim)
                continue
            hidden = blueprint_dims if head == Head.BLUEPRINT else (head_dim,)
            biases = initial_op_logits if head == Head.OP else None
            self.networks[HEADS[head]] = head_mlp((num_inputs, *hidden, size), biases)
        self.restricted = frozenset(choices)
        legal_alike = set(Head) - {Head.OP, Head.SLOT, Head.BLUEPRINT}
        self._single = {head: left[0] for head, left in choices.items() if len(left) == 1 and head in legal_alike}
        for head in self.restricted:
            left = torch.zeros(sizes[head], dtype=torch.bool)
            left[list(choices[head])] = True
            self.register_buffer(f"{HEADS[head]}_choices", left, persistent=False)

    def op_distribution(
        self, trunk: Tensor, masks: ActionMasks, describe_row: RowDescription | None = None
    ) -> MaskedCategorical:
        """Return the distribution of the first head, the op, which depends on no other choice."""
        logits = self.networks[HEADS[Head.OP]](trunk)
        return MaskedCategorical(logits, self._left(Head.OP, masks.op), head=HEADS[Head.OP], describe_row=describe_row)

    def walk(
        self,
        trunk: Tensor,
        slot_inputs: Tensor,
        masks: ActionMasks,
        choose: Choose,
        describe_row: RowDescription | None = None,
    ) -> Walk:
        """Choose head by head: op, then slot under that op's mask, then the rest.

        Args:
            trunk: ``[..., H]``.
            slot_inputs: ``[..., S, F]``.
            masks: leading shape as ``trunk``.
            choose: sampling, taking the mode, or reading recorded actions.
            describe_row: environment row to text, for errors.

        Raises:
            ValueError: a head that matters has no legal choice.
        """
        distributions: list[Distribution] = [self.op_distribution(trunk, masks, describe_row)]
        chosen = [choose(Head.OP, distributions[0])]
        op = chosen[Head.OP]
        slot = torch.zeros_like(op)
        matters = op_head_table(op.device)[op]
        op_vectors = self.op_vectors[op].to(trunk.dtype)
        inputs = torch.cat([trunk, op_vectors], -1) if self.conditional else trunk
        for head in list(Head)[1:]:
            distribution: Distribution
            if head in self._single:
                distribution = SingleChoice(self._single[head], matters[..., head])
            else:
                mask = self._left(head, _mask(head, masks, op, slot))
                points = head == Head.SLOT and self.points
                logits = self.networks[HEADS[head]](*((inputs, slot_inputs) if points else (inputs,)))
                relevant = None if mask is None else matters[..., head]
                distribution = MaskedCategorical(logits, mask, relevant, HEADS[head], describe_row)
            distributions.append(distribution)
            chosen.append(choose(head, distribution))
            if head == Head.SLOT:
                slot = chosen[head]
                inputs = self._other_head_input(trunk, op_vectors, slot, slot_inputs)
        require_choices(distributions)
        assert len(chosen) == NUM_HEADS
        alpha = masks.alpha.gather(-1, slot.unsqueeze(-1)).squeeze(-1)
        matters = relevance(op, alpha, chosen[Head.ALPHA_SPEED])
        return Walk(actions=torch.stack(chosen, -1) * matters, relevant=matters, distributions=distributions)

    def offer(self, actions: Tensor, masks: ActionMasks) -> Tensor:
        """Return which legal actions can be taken with the choices left to the heads, ``bool [...]``.

        Args:
            actions: ``int64 [..., 8]``.
            masks: leading shape as ``actions``.
        """
        alpha = masks.alpha.gather(-1, actions[..., Head.SLOT, None]).squeeze(-1)
        matters = relevance(actions[..., Head.OP], alpha, actions[..., Head.ALPHA_SPEED])
        offered = torch.ones_like(matters[..., 0])
        for head in self.restricted:
            left: Tensor = getattr(self, f"{HEADS[head]}_choices")
            offered &= left[actions[..., head]] | ~matters[..., head]
        return offered

    def _left(self, head: Head, legal: Tensor | None) -> Tensor | None:
        """Return the legal choices that are left to a head; ``None`` if it has all."""
        if head not in self.restricted:
            return legal
        left: Tensor = getattr(self, f"{HEADS[head]}_choices")
        return left if legal is None else legal & left

    def _other_head_input(self, trunk: Tensor, op_vectors: Tensor, slot: Tensor, slot_inputs: Tensor) -> Tensor:
        if not self.conditional:
            return trunk
        index = slot[..., None, None].expand(*slot.shape, 1, slot_inputs.shape[-1])
        of_slot = slot_inputs.gather(-2, index).squeeze(-2)  # (..., F)
        numbers = [self.slot_vectors[slot].to(trunk.dtype)] if len(self.slot_vectors) else []
        return torch.cat([trunk, op_vectors, *numbers, of_slot], -1)


def _mask(head: Head, masks: ActionMasks, op: Tensor, slot: Tensor) -> Tensor | None:
    """Return the legal choices of one head given op and slot; ``None`` for heads in which everything is legal."""
    if head == Head.SLOT:
        source, index = masks.slot, op  # (..., 6, S)
    elif head == Head.BLUEPRINT:
        source, index = masks.blueprint, slot  # (..., S, B)
    else:
        return None
    return source.gather(-2, index[..., None, None].expand(*index.shape, 1, source.shape[-1])).squeeze(-2)
