"""Bodies of the policy: the arrangement of an observation's numbers into rows of a recurrent network, and back.

Axis legend: ... = environments, or environments x steps, D = features, C = features of the environment, S = slots, F =
inputs of a slot, R = rows, I = inputs of a row, H = LSTM width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper.runtime.options import BodyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths that a body depends on.

    Attributes:
        num_slots: S. ``num_common``: C. ``slot_dim``: F. ``lstm_dim``: H.
    """

    num_slots: int
    num_common: int
    slot_dim: int
    lstm_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Parts of an observation.

    Attributes:
        features: ``float32 [..., D]``, normalised.
        common: ``float32 [..., C]``, those of the environment.
        vectors: ``float [..., S, embedding_dim]``, blueprint embeddings.
        slots: ``float [..., S, F]``, features, probes and blueprint embedding of each slot.
        valid: ``bool [..., S]``, false for padding: slots that no blueprint fits.
    """

    features: Tensor
    common: Tensor
    vectors: Tensor
    slots: Tensor
    valid: Tensor


class Body(Protocol):
    """Interface of a body, which has no weights of its own.

    Attributes:
        num_rows: R, recurrent states of an environment.
        num_inputs: I.
        trunk_dim: width of the trunk, which is an input of all heads.
        slot_dim: width of the heads' input for one slot.
        numbered: true if heads are told the numbers of slots, which ties their weights to S.
    """

    num_rows: int
    num_inputs: int
    trunk_dim: int
    slot_dim: int
    numbered: bool

    def rows(self, seen: Seen) -> Tensor:
        """Return the inputs of the encoder, ``[..., R, I]``."""

    def outputs(self, rows: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """Convert the LSTM's outputs ``[..., R, H]`` to the trunk ``[..., trunk_dim]`` and the heads' inputs for slots,
        ``[..., S, slot_dim]``.
        """


class Flat:
    """One row of all features in the order of slots. The weights belong to one number of slots."""

    num_rows, numbered = 1, True

    def __init__(self, sizes: Sizes) -> None:
        self.num_inputs = sizes.num_common + sizes.num_slots * sizes.slot_dim
        self.trunk_dim, self.slot_dim = sizes.lstm_dim, sizes.slot_dim

    def rows(self, seen: Seen) -> Tensor:
        return torch.cat([seen.features, seen.vectors.flatten(-2)], -1).unsqueeze(-2)

    def outputs(self, rows: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        return rows.squeeze(-2), seen.slots


class Shared:
    """One row for each slot with the same weights, so that every slot is remembered by a state of its own.

    A row has the features of the environment, those of its slot, and their mean and maximum over all slots (Zaheer et
    al. 2017); the trunk is mean and maximum of the LSTM's outputs. All is equivariant to permutations of slots, apart
    from the relative depth among a row's inputs and from features that depend on the order themselves.

    Args:
        sizes: widths.
        with_depth: tell each row the relative depth of its slot.
    """

    numbered = False

    def __init__(self, sizes: Sizes, with_depth: bool = True) -> None:
        self._with_depth = with_depth
        self.num_rows = sizes.num_slots
        self.num_inputs = sizes.num_common + 3 * sizes.slot_dim + with_depth
        self.trunk_dim, self.slot_dim = 2 * sizes.lstm_dim, sizes.lstm_dim + sizes.slot_dim

    def rows(self, seen: Seen) -> Tensor:
        common = torch.cat([seen.common, pooled(seen.slots, seen.valid)], -1).unsqueeze(-2)
        parts = [common.expand(*seen.slots.shape[:-1], -1), seen.slots]
        if self._with_depth:
            parts.append(relative_depth(seen.valid).to(seen.slots.dtype).unsqueeze(-1))
        return torch.cat(parts, -1)

    def outputs(self, rows: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        return pooled(rows, seen.valid), torch.cat([rows, seen.slots.to(rows.dtype)], -1)


def pooled(values: Tensor, valid: Tensor) -> Tensor:
    """Return mean and maximum of ``[..., S, K]`` over the valid slots, ``[..., 2K]``; zeros if there are none."""
    padding = ~valid.unsqueeze(-1)
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    mean = values.masked_fill(padding, 0.0).sum(-2) / count
    highest = values.masked_fill(padding, -torch.inf).amax(-2).masked_fill(~valid.any(-1, keepdim=True), 0.0)
    return torch.cat([mean, highest], -1)


def relative_depth(valid: Tensor) -> Tensor:
    """Return the place of each slot among the valid ones, from -1 for the first to 1 for the last, 0 for a single one.

    Args:
        valid: ``bool [..., S]``.

    Returns:
        ``float32 [..., S]``.
    """
    rank = valid.cumsum(-1) - 1
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    return torch.where(last > 0, 2.0 * rank / last.clamp(min=1) - 1.0, 0.0)


BODIES: dict[BodyName, Callable[[Sizes, bool], Body]] = {
    BodyName.flat: lambda sizes, with_depth: Flat(sizes),
    BodyName.shared: Shared,
}
"""Bodies by name, from their widths and ``policy.slot_depth``."""
