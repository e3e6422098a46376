"""Categorical distributions over legal choices.

Axis legend: ... = any leading shape (environments, or environments x steps), K = choices of one head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

ILLEGAL_LOGIT = -1e4
"""Logit of an illegal choice, relative to the best legal one: finite, safe in fp16, and exp() of it is exactly 0."""

RowDescription = Callable[[int], str]
"""Environment row to a short text about it (its stages, say), for error messages."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskedCategorical:
    """An immutable categorical distribution over the legal choices of one head.

    Always computed in fp32. Rows that are not ``relevant`` have no distribution: index 0, log-probability 0, entropy
    0 and no gradient, whatever their mask.

    Args:
        logits: ``float [..., K]``.
        mask: ``bool [..., K]``, legal choices; ``None`` where all are legal.
        relevant: ``bool [...]``, rows where the head matters; ``None`` where it always does.
        head: name of the head, for errors.
        describe_row: environment row to text, for errors.

    Attributes:
        log_probs: ``float32 [..., K]``, normalised over the legal choices.
        legal: ``bool [..., K]``; all true in rows that are not relevant.

    Raises:
        ValueError: a relevant row has no legal choice.
    """

    logits: Tensor
    mask: Tensor | None = None
    relevant: Tensor | None = None
    head: str = "head"
    describe_row: RowDescription | None = None
    log_probs: Tensor = field(init=False)
    legal: Tensor = field(init=False)

    def __post_init__(self) -> None:
        logits = self.logits.float()
        if self.mask is None:
            legal = torch.ones_like(logits, dtype=torch.bool)
        else:
            legal = self.mask.clone() if self.relevant is None else self.mask | ~self.relevant.unsqueeze(-1)
            possible = legal.any(-1)
            if not bool(possible.all()):
                raise ValueError(self._no_choice(possible))
            # Centred on the best legal logit, so that the finite fill lies below it however negative the logits are.
            best = logits.detach().masked_fill(~legal, -torch.inf).amax(-1, keepdim=True)
            logits = (logits - best).masked_fill(~legal, ILLEGAL_LOGIT)
        object.__setattr__(self, "legal", legal)
        object.__setattr__(self, "log_probs", torch.log_softmax(logits, -1))

    @property
    def num_legal(self) -> Tensor:
        """Number of legal choices, ``int64 [...]``; 0 where the head does not matter."""
        return self._only_relevant(self.legal.sum(-1))

    def log_prob(self, index: Tensor) -> Tensor:
        """Log-probability of ``index: int64 [...]``, ``float32 [...]``."""
        return self._only_relevant(self.log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1))

    def entropy(self) -> Tensor:
        """Entropy divided by log(number of legal choices), ``float32 [...]`` in [0, 1]; 0 where one is legal."""
        entropy = -(self.log_probs.exp() * self.log_probs).sum(-1)
        num_legal = self.legal.sum(-1)
        scale = num_legal.clamp(min=2).float().log()
        return self._only_relevant(torch.where(num_legal > 1, entropy / scale, 0.0))

    def mode(self) -> Tensor:
        """Most likely legal choice, ``int64 [...]``."""
        return self._only_relevant(self.log_probs.argmax(-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One choice per row, ``int64 [...]``, by the Gumbel-max trick.

        All randomness comes from ``generator``, on the CPU whatever the device: its state is then the same on all.
        """
        noise = torch.empty(self.log_probs.shape).exponential_(generator=generator)
        # The device need not be waited for: what it copies from is not written again.
        noise = noise.to(self.log_probs.device, non_blocking=True)
        gumbel = -noise.clamp(min=torch.finfo(torch.float32).tiny).log()
        return self._only_relevant((self.log_probs + gumbel).argmax(-1))

    def _only_relevant(self, values: Tensor) -> Tensor:
        return values if self.relevant is None else torch.where(self.relevant, values, 0)

    def _no_choice(self, possible: Tensor) -> str:
        row = (~possible).nonzero()[0].tolist()
        where = f"environment {row[0]}" + (f", step {row[1]}" if len(row) > 1 else "")
        detail = f" ({self.describe_row(row[0])})" if self.describe_row is not None else ""
        return f"head '{self.head}' has no legal choice in {where}{detail}"
