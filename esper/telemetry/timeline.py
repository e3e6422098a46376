"""The record of one episode: what every slot went through and what it did to accuracy.

Axis legend: T = host epochs, S = slots in canonical order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class OpMark(NamedTuple):
    """One action: its op by name, the slot index it named (``None`` for WAIT), and whether it was executed."""

    op: str
    slot: int | None
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTimeline:
    """One episode of one host. Row t belongs to host epoch t + 1.

    Attributes:
        stages: ``int [T, S]``, indices of :class:`esper.growth.Stage`, while the epoch was trained.
        alphas: ``float [T, S]`` in the epoch.
        blueprints: ``int [T, S]``; -1 means no module.
        ops: T actions; action t was applied before the epoch.
        val_accuracy: ``float [T]``, fraction of 1.
        twin_accuracy: ``float [T]``, the never-grown twin's, ``None`` if there is no twin.
        family: host family of the instance.
        instance: index of the instance.
        controller: who decided.

    Raises:
        ValueError: lengths disagree.
    """

    stages: Tensor
    alphas: Tensor
    blueprints: Tensor
    ops: tuple[OpMark, ...]
    val_accuracy: Tensor
    twin_accuracy: Tensor | None
    family: str
    instance: int
    controller: str

    def __post_init__(self) -> None:
        if self.stages.ndim != 2 or not self.stages.shape == self.alphas.shape == self.blueprints.shape:
            raise ValueError(
                "stages, alphas and blueprints must share one shape [T, S], got "
                f"{list(self.stages.shape)}, {list(self.alphas.shape)}, {list(self.blueprints.shape)}"
            )
        lengths = {"ops": len(self.ops), "val_accuracy": len(self.val_accuracy)}
        if self.twin_accuracy is not None:
            lengths["twin_accuracy"] = len(self.twin_accuracy)
        if set(lengths.values()) != {len(self.stages)}:
            raise ValueError(f"every row needs one entry: stages have {len(self.stages)} rows, but {lengths}")
