"""Categorical distributions over legal choices.

Axis legend: ... = any leading shape (environments, or environments x steps), K = choices of one head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

ILLEGAL_LOGIT = -1e4
"""Logit of an illegal choice, relative to the best legal one: finite, safe in fp16, and exp() of it is exactly 0."""

RowDescription = Callable[[int], str]
"""Function from an environment row to a short description (such as its stages), for error messages."""


def gumbel_noise(
    shapes: Sequence[Sequence[int]], generator: torch.Generator | None, device: torch.device
) -> list[Tensor]:
    """Draw Gumbel noise of several shapes, in order, ``float32``.

    All randomness comes from ``generator``, on the CPU for every device, so that its state does not depend on the
    device.
    """
    sizes = [prod(shape) for shape in shapes]
    noise = torch.empty(sum(sizes))
    for part in torch.split(noise, sizes):
        part.exponential_(generator=generator)
    # No synchronisation needed: the source of the copy is not written again.
    noise = noise.to(device, non_blocking=True)
    gumbel = -noise.clamp(min=torch.finfo(torch.float32).tiny).log()
    return [part.view(*shape) for part, shape in zip(torch.split(gumbel, sizes), shapes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedCategorical:
    """An immutable categorical distribution over the legal choices of one head.

    Always computed in fp32. Rows that are not ``relevant`` have no distribution: index 0, log-probability 0, entropy 0
    and no gradient, whatever their mask. All others need a legal choice: see :func:`require_choices`.

    Args:
        logits: ``float [..., K]``.
        mask: ``bool [..., K]``, legal choices; ``None`` where all are legal.
        relevant: ``bool [...]``, rows where the head matters; ``None`` if it always does.
        head: name of the head, for errors.
        describe_row: environment row to text, for errors.

    Attributes:
        log_probs: ``float32 [..., K]``, normalised over the legal choices.
        legal: ``bool [..., K]``; all true in rows that are not relevant.
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
        """Return the log-probability of ``index: int64 [...]``, ``float32 [...]``."""
        return self._only_relevant(self.log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1))

    def entropy(self) -> Tensor:
        """Return the entropy divided by log(number of legal choices), ``float32 [...]`` in [0, 1]; 0 where one is
        legal.
        """
        entropy = -(self.log_probs.exp() * self.log_probs).sum(-1)
        num_legal = self.legal.sum(-1)
        scale = num_legal.clamp(min=2).float().log()
        return self._only_relevant(torch.where(num_legal > 1, entropy / scale, 0.0))

    def mode(self) -> Tensor:
        """Return the most likely legal choice, ``int64 [...]``."""
        return self._only_relevant(self.log_probs.argmax(-1))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample one choice per row, ``int64 [...]``; see :func:`gumbel_noise`."""
        (noise,) = gumbel_noise([self.log_probs.shape], generator, self.log_probs.device)
        return self.perturbed_mode(noise)

    def perturbed_mode(self, noise: Tensor) -> Tensor:
        """Return the choices with the largest sum of log-probability and noise ``float32 [..., K]``, ``int64 [...]``:
        samples, if the noise is Gumbel's.
        """
        return self._only_relevant((self.log_probs + noise).argmax(-1))

    def _only_relevant(self, values: Tensor) -> Tensor:
        return values if self.relevant is None else torch.where(self.relevant, values, 0)

    def _no_choice(self, row: Sequence[int]) -> str:
        where = f"environment {row[0]}" + (f", step {row[1]}" if len(row) > 1 else "")
        detail = f" ({self.describe_row(row[0])})" if self.describe_row is not None else ""
        return f"head '{self.head}' has no legal choice in {where}{detail}"


@dataclass(frozen=True, slots=True, eq=False)
class SingleChoice:
    """The distribution of a head that has one choice left, which needs no logits.

    Args:
        index: the choice.
        relevant: ``bool [...]``, rows where the head matters; in others index, log-probability and entropy are 0, as in
            :class:`MaskedCategorical`.
    """

    index: int
    relevant: Tensor

    @property
    def num_legal(self) -> Tensor:
        """Number of legal choices, ``int64 [...]``; 0 where the head does not matter."""
        return self.relevant.long()

    def log_prob(self, index: Tensor) -> Tensor:
        """Return the log-probability of ``index: int64 [...]``, ``float32 [...]``: 0, or that of an illegal choice."""
        return (self.relevant & (index != self.index)).float() * ILLEGAL_LOGIT

    def entropy(self) -> Tensor:
        """Return 0, ``float32 [...]``."""
        return torch.zeros_like(self.relevant, dtype=torch.float32)

    def mode(self) -> Tensor:
        """Return the choice, ``int64 [...]``."""
        return self.relevant * self.index

    def perturbed_mode(self, noise: Tensor) -> Tensor:
        """Return the choice, whatever the noise, ``int64 [...]``."""
        return self.mode()


Distribution = MaskedCategorical | SingleChoice
"""Distribution over the choices of one head."""


def require_choices(distributions: Sequence[Distribution]) -> None:
    """Check that every relevant row of some distributions of equal leading shape has a legal choice, waiting for the
    device only once.

    Raises:
        ValueError: a row has none; the message names the first such head and row.
    """
    masked = [each for each in distributions if isinstance(each, MaskedCategorical) and each.mask is not None]
    possible = torch.stack([distribution.legal.any(-1) for distribution in masked])
    if bool(possible.all()):
        return
    head, *row = (~possible).nonzero()[0].tolist()
    raise ValueError(masked[head]._no_choice(row))
