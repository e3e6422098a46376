"""Views that a user's own controller decides on, and reports of epochs.

Slots are named by their paths in the model throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from esper.grower.scores import Score
from esper.growth import Stage
from esper.growth.actions import FactoredAction


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """View of one slot, on which a decision may be based. ``None`` means "no module" or "not measured".

    Attributes:
        stage: stage of the module; DORMANT for an empty slot.
        fading: true for a culled module on its way to alpha 0.
        blueprint: blueprint of the module.
        alpha, alpha_target: share of the module in the forward pass.
        age: epochs that the module was trained. ``epochs_in_stage``: epochs since its stage changed.
        num_parameters: parameters of the module.
        contribution: contribution of the blended module in points: the score with it minus the score without it.
        preview: points that a developing module would contribute at alpha 1.
        gradient_norm: mean over the last epoch. ``gradient_health``: 1 for a healthy norm, falling to 0.
        probes: statistics of the network at this place, by name, for an empty slot too.
        ops: ops that are legal for the slot now.
        blueprints: blueprints that can germinate in it.
    """

    stage: Stage
    fading: bool
    blueprint: str | None
    alpha: float
    alpha_target: float
    age: int
    epochs_in_stage: int
    num_parameters: int
    contribution: float | None
    preview: float | None
    gradient_norm: float | None
    gradient_health: float | None
    probes: Mapping[str, float]
    ops: tuple[str, ...]
    blueprints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthView:
    """Everything that a decision may be based on.

    Attributes:
        epoch: number of completed epochs. ``num_epochs``: total number of epochs.
        slots: views of the slots by path, in the order in which they run.
        scores: validation after each epoch so far.
        plateau_epochs: epochs since the validation loss last fell by 1 %.
        host_parameters: parameters of the original network. ``added_parameters``: parameters of all present seed
            modules.
        last_action: decision before the last epoch; ``None`` before the first decision.
        last_success: true if that decision took effect.
        last_reason: reason of that decision, or why it had no effect.
    """

    epoch: int
    num_epochs: int
    slots: Mapping[str, SlotView]
    scores: tuple[Score, ...]
    plateau_epochs: int
    host_parameters: int
    added_parameters: int
    last_action: FactoredAction | None
    last_success: bool
    last_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthReport:
    """Report of an epoch.

    Attributes:
        epoch: number of the epoch, from 1. ``num_epochs``: total number of epochs.
        score: score of the network.
        slots: views of the slots by path, with the epoch's measurements and the stages after it.
        changes: automatic stage changes, one line each.
        action: decision for the next epoch; ``None`` after the last.
        reason: reason of the decision, or why it had no effect.
        added_parameters: parameters of all seed modules.
    """

    epoch: int
    num_epochs: int
    score: Score
    slots: Mapping[str, SlotView]
    changes: tuple[str, ...]
    action: FactoredAction | None
    reason: str
    added_parameters: int

    def __str__(self) -> str:
        lines = [f"epoch {self.epoch}/{self.num_epochs}: {self.score.points:.1f} points, loss {self.score.loss:.3f}"]
        lines += self.changes
        if self.action is not None and self.action.op != "WAIT":
            lines.append(f"{self.action.op} {self.action.slot}: {self.reason}")
        return "; ".join(lines)
