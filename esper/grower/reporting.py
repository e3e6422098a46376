"""Readable descriptions of a lifecycle: views of slots, and reasons of decisions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.lifecycle import Lifecycle
from esper.envs.observations import Observation
from esper.grower.scores import Score
from esper.grower.views import GrowthView, SlotView
from esper.growth import STAGE_NAMES, SeedReport, Stage, Transitions
from esper.growth.actions import OP_GERMINATE, OP_NAMES, OP_WAIT, FactoredAction


def slot_views(lifecycle: Lifecycle, observation: Observation) -> dict[str, SlotView]:
    """Return views of all slots of the single environment, by path."""
    masks, names = observation.masks, blueprint_ids()
    reports = lifecycle.reports(0)
    views = {}
    for slot, (path, report) in enumerate(reports.items()):
        ops = tuple(OP_NAMES[op] for op in masks.slot[0, :, slot].nonzero().flatten().tolist())
        fits = masks.blueprint[0, slot].nonzero().flatten().tolist() if OP_NAMES[OP_GERMINATE] in ops else []
        developing = report.stage in (Stage.GERMINATED, Stage.TRAINING)
        views[path] = SlotView(
            stage=report.stage,
            fading=report.fading,
            blueprint=report.blueprint,
            alpha=report.alpha,
            alpha_target=report.alpha_target,
            age=report.age,
            epochs_in_stage=report.epochs_in_stage,
            num_parameters=report.seed_params,
            contribution=None if developing else report.contribution,
            preview=report.contribution if developing else None,
            gradient_norm=report.gradient_norm,
            gradient_health=report.gradient_health,
            probes=_probes(lifecycle, slot),
            ops=(OP_NAMES[OP_WAIT], *ops),
            blueprints=tuple(names[index] for index in fits),
        )
    return views


def _probes(lifecycle: Lifecycle, slot: int) -> Mapping[str, float]:
    if lifecycle.probes is None:
        return {}
    values = lifecycle.probes[0, slot].tolist()
    return {
        name: value
        for name, value in zip(lifecycle.settings.slot_probes, values, strict=True)
        if value == value  # NaN: not measured
    }


def kept_modules(reports: Mapping[str, SeedReport]) -> dict[str, dict[str, Any]]:
    """Summarise FOSSILIZED modules by path, in JSON types."""
    return {
        path: {
            "blueprint": report.blueprint,
            "blend": None if report.algorithm is None else report.algorithm.name,
            "alpha": report.alpha,
            "parameters": report.seed_params,
            "contribution": report.contribution,
        }
        for path, report in reports.items()
        if report.stage == Stage.FOSSILIZED
    }


def changes(transitions: Transitions, slot_ids: Sequence[str]) -> tuple[str, ...]:
    """List automatic stage changes, one line each."""
    before, after = transitions.before[0].tolist(), transitions.after[0].tolist()
    return tuple(
        f"{path} {STAGE_NAMES[old]} to {STAGE_NAMES[new]}"
        for path, old, new in zip(slot_ids, before, after, strict=True)
        if old != new
    )


def reason(action: FactoredAction, view: GrowthView) -> str:
    """Describe the slot of an action as it was known at the decision."""
    if action.slot is None:
        return ""
    slot = view.slots[action.slot]
    if slot.blueprint is None:
        return f"{action.blueprint or 'no module'}, validation loss {view.plateau_epochs} epochs from its last low"
    known = [f"{slot.blueprint} in {slot.stage.name} at alpha {slot.alpha:.2f}"]
    for name in ("contribution", "preview"):
        points = getattr(slot, name)
        if points is not None:
            known.append(f"{name} {points:+.2f} points")
    if slot.gradient_health is not None:
        known.append(f"gradient health {slot.gradient_health:.2f}")
    return ", ".join(known)


def warn_of_loss(epoch: int, score: Score) -> None:
    """Warn the caller's caller of a loss that is not finite."""
    if not math.isfinite(score.loss):
        warnings.warn(
            f"evaluate: the loss of epoch {epoch} is not finite ({score.loss}): the network has broken down, and "
            "nothing is measured of its modules",
            stacklevel=3,
        )


def warn_of_steps(epoch: int, host_norm: Tensor, told: bool) -> bool:
    """Warn the caller's caller, unless it was told already, of an epoch without a gradient of the host; return whether
    it is told now.
    """
    if told or not host_norm.isnan().all():
        return told
    warnings.warn(
        f"optimizer: the Grower's made no step with gradients in epoch {epoch}, so that modules learn nothing: train "
        "with that one, call measure() where the step is handed a closure, and lower a loss scaler's first scale",
        stacklevel=3,
    )
    return True
