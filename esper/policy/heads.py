"""The eight heads: their networks, and the one walk over them that samples, takes modes and evaluates.

Axis legend: ... = environments, or environments x steps, S = slots, F = inputs per slot, H = trunk width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.growth.actions import HEADS, NUM_HEADS, NUM_OPS, ActionMasks, Head, head_sizes, relevance
from esper.policy.distributions import MaskedCategorical, RowDescription

SLOT_HEADS = ("flat", "pointer")

Choose = Callable[[Head, MaskedCategorical], Tensor]
"""Picks one index per row of a head's distribution."""


def orthogonal_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def head_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between; gain 0.01 on the last, so that a new policy is nearly uniform."""
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes[:-1]):
        layers += [orthogonal_linear(num_inputs, num_outputs, sqrt(2)), nn.ReLU()]
    return nn.Sequential(*layers, orthogonal_linear(sizes[-2], sizes[-1], 0.01))


class PointerHead(nn.Module):
    """One score per slot, from the slot's own inputs by weights that all slots share (Vinyals et al. 2015).

    What is learned of one place holds for all, and the number of weights hardly depends on S: a slot's number is among
    its inputs, for what really depends on where it is.

    Args:
        num_inputs: common inputs, I.
        num_slots: S.
        slot_dim: F.
        hidden_dim: width of the hidden layer.
    """

    def __init__(self, num_inputs: int, num_slots: int, slot_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.score = head_mlp((num_inputs + num_slots + slot_dim, hidden_dim, 1))
        self.numbers: Tensor
        self.register_buffer("numbers", torch.eye(num_slots), persistent=False)

    def forward(self, inputs: Tensor, slot_inputs: Tensor) -> Tensor:
        """``[..., I]`` and ``[..., S, F]`` to logits ``[..., S]``."""
        shape = slot_inputs.shape[:-1]
        common = inputs.unsqueeze(-2).expand(*shape, inputs.shape[-1])
        numbers = self.numbers.to(inputs.dtype).expand(*shape, -1)
        scores: Tensor = self.score(torch.cat([common, numbers, slot_inputs.to(inputs.dtype)], -1))
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
        """``[..., H]`` to ``[..., 6]`` (ops), or ``[..., 1]`` without ops."""
        weight = self.hidden.weight
        hidden = functional.linear(trunk, weight[:, : self.trunk_dim], self.hidden.bias).unsqueeze(-2)  # (..., 1, V)
        if weight.shape[1] > self.trunk_dim:
            # A one-hot input selects a column: all ops share the product with the trunk.
            hidden = hidden + weight[:, self.trunk_dim :].T  # (..., 6, V)
        values: Tensor = self.output(hidden.relu())
        return values.squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one pass over the heads chose.

    Attributes:
        actions: ``int64 [..., 8]``, 0 in heads that do not matter.
        log_prob: ``float32 [..., 8]``, exactly 0 in heads that do not matter.
        entropy: ``float32 [..., 8]``, divided by log(number legal); exactly 0 in heads that do not matter.
        num_legal: ``int64 [..., 8]``, legal choices; 0 in heads that do not matter.
        op: the op distribution.
    """

    actions: Tensor
    log_prob: Tensor
    entropy: Tensor
    num_legal: Tensor
    op: MaskedCategorical


class ActionHeads(nn.Module):
    """Networks of the eight heads.

    With ``conditional`` heads the slot head also sees one-hot(op), and the six heads after it see one-hot(op),
    one-hot(slot) and the chosen slot's inputs. Otherwise every head sees the trunk only, and only masks tie them.

    Args:
        trunk_dim: width of the trunk.
        num_slots: S.
        num_blueprints: choices of the blueprint head.
        slot_dim: F.
        head_dim: hidden width of all heads but the blueprint head.
        blueprint_dims: hidden widths of the blueprint head.
        conditional: see above.
        slot_head: ``"flat"`` gives the slot head a logit per slot; ``"pointer"`` is a :class:`PointerHead`.
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
        slot_head: str = "pointer",
    ) -> None:
        super().__init__()
        self.num_slots = num_slots
        self.conditional = conditional
        self.points = slot_head == "pointer"
        extra = {Head.OP: 0, Head.SLOT: NUM_OPS}
        self.networks = nn.ModuleDict()
        for head, size in zip(Head, head_sizes(num_slots, num_blueprints), strict=True):
            num_inputs = trunk_dim + (extra.get(head, NUM_OPS + num_slots + slot_dim) if conditional else 0)
            if head == Head.SLOT and self.points:
                self.networks[HEADS[head]] = PointerHead(num_inputs, num_slots, slot_dim, head_dim)
                continue
            hidden = blueprint_dims if head == Head.BLUEPRINT else (head_dim,)
            self.networks[HEADS[head]] = head_mlp((num_inputs, *hidden, size))

    def op_distribution(
        self, trunk: Tensor, masks: ActionMasks, describe_row: RowDescription | None = None
    ) -> MaskedCategorical:
        """Distribution of the first head, which depends on nothing chosen before."""
        logits = self.networks[HEADS[Head.OP]](trunk)
        return MaskedCategorical(logits, masks.op, head=HEADS[Head.OP], describe_row=describe_row)

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
        op_distribution = self.op_distribution(trunk, masks, describe_row)
        distributions = [op_distribution]
        chosen = [choose(Head.OP, op_distribution)]
        op = chosen[Head.OP]
        slot = torch.zeros_like(op)
        relevant = relevance(op, torch.zeros_like(op), torch.zeros_like(op))
        inputs = self._slot_head_input(trunk, op)
        for head in list(Head)[1:]:
            mask = _mask(head, masks, op, slot)
            points = head == Head.SLOT and self.points
            logits = self.networks[HEADS[head]](*((inputs, slot_inputs) if points else (inputs,)))
            distribution = MaskedCategorical(logits, mask, relevant[..., head], HEADS[head], describe_row)
            distributions.append(distribution)
            chosen.append(choose(head, distribution))
            if head == Head.SLOT:
                slot = chosen[head]
                alpha = masks.alpha.gather(-1, slot.unsqueeze(-1)).squeeze(-1)
                relevant = relevance(op, alpha, torch.zeros_like(op))
                inputs = self._other_head_input(trunk, op, slot, slot_inputs)
            elif head == Head.ALPHA_SPEED:
                relevant = relevance(op, alpha, chosen[head])  # a curve matters only when the speed is not INSTANT
        assert len(chosen) == NUM_HEADS
        return Walk(
            actions=torch.stack(chosen, -1),
            log_prob=torch.stack([d.log_prob(index) for d, index in zip(distributions, chosen, strict=True)], -1),
            entropy=torch.stack([d.entropy() for d in distributions], -1),
            num_legal=torch.stack([d.num_legal for d in distributions], -1),
            op=op_distribution,
        )

    def _slot_head_input(self, trunk: Tensor, op: Tensor) -> Tensor:
        return torch.cat([trunk, _one_hot(op, NUM_OPS, trunk)], -1) if self.conditional else trunk

    def _other_head_input(self, trunk: Tensor, op: Tensor, slot: Tensor, slot_inputs: Tensor) -> Tensor:
        if not self.conditional:
            return trunk
        index = slot[..., None, None].expand(*slot.shape, 1, slot_inputs.shape[-1])
        of_slot = slot_inputs.gather(-2, index).squeeze(-2)  # (..., F)
        return torch.cat([trunk, _one_hot(op, NUM_OPS, trunk), _one_hot(slot, self.num_slots, trunk), of_slot], -1)


def _one_hot(index: Tensor, size: int, like: Tensor) -> Tensor:
    return functional.one_hot(index, size).to(like.dtype)


def _mask(head: Head, masks: ActionMasks, op: Tensor, slot: Tensor) -> Tensor | None:
    """Legal choices of one head given op and slot; ``None`` for the heads that are always wholly legal."""
    if head == Head.SLOT:
        source, index = masks.slot, op  # (..., 6, S)
    elif head == Head.BLUEPRINT:
        source, index = masks.blueprint, slot  # (..., S, B)
    else:
        return None
    return source.gather(-2, index[..., None, None].expand(*index.shape, 1, source.shape[-1])).squeeze(-2)
