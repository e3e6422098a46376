"""Choices of a configuration, apart from the packages that act on them: a refused command must not wait for those."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Amp(StrEnum):
    """Automatic mixed precision: type of products and convolutions in hosts and policy."""

    off = "off"
    bf16 = "bf16"
    fp16 = "fp16"

    @property
    def dtype(self) -> torch.dtype | None:
        """Type of products and convolutions, ``None`` for that of the parameters."""
        import torch

        return {Amp.bf16: torch.bfloat16, Amp.fp16: torch.float16}.get(self)


class MappingName(StrEnum):
    """Implementations that run many hosts as one program; all compute the same. auto = the fastest on this machine."""

    auto = "auto"
    loop = "loop"
    vmap = "vmap"
    grouped = "grouped"
    matmul = "matmul"
    vmap_compiled = "vmap_compiled"
    grouped_compiled = "grouped_compiled"
    matmul_compiled = "matmul_compiled"


class Critic(StrEnum):
    """Estimate of the value head: Q(s, op) with V = E[Q] as the baseline, or V(s) itself."""

    op = "op"
    state = "state"


class BodyName(StrEnum):
    """Weights before the heads: of all slots at once, for one number of them (flat), or shared by slots, each with a
    recurrent state of its own, for any number of them (shared).
    """

    flat = "flat"
    shared = "shared"


class SlotHead(StrEnum):
    """Source of the slots' logits: one output of the trunk each, or a shared score of each slot's own features."""

    flat = "flat"
    pointer = "pointer"


class Greedy(StrEnum):
    """Op of a policy that does not sample: the most probable one in each step (mode), which may wait for ever, or
    that unless another is overdue, which half of the sampled episodes would have taken by then (hazard).
    """

    mode = "mode"
    hazard = "hazard"


class Ratio(StrEnum):
    """Probability ratio that PPO clips: of all relevant heads together, or of each head."""

    joint = "joint"
    per_head = "per_head"


class Rent(StrEnum):
    """Growth of rent with added parameters."""

    linear = "linear"
    log = "log"


class WandbMode(StrEnum):
    """Connection to W&B: none, files for later (``wandb sync``), or live."""

    disabled = "disabled"
    offline = "offline"
    online = "online"
