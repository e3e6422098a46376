"""Start of a new run from the policy of an earlier one, complete or, for another number of slots, in part.

Axis legend: D = features, S = slots, F = features of a slot.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from esper.config import to_plain
from esper.config.identity import differences
from esper.config.root import Config
from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES
from esper.experiment.checkpoint import CheckpointError, config_of, restore_policy
from esper.growth.actions import HEADS, NUM_OPS, Head
from esper.policy import GrowthPolicy, Normaliser

FIXED = ("policy.", "observation.slot_probes", "observation.price", "observation.scale_free", "plugins")
"""Keys that determine the shape of a policy, or the meaning of its choices."""

INPUT_LAYER, SLOT_HEAD = "encoder.0.", f"heads.networks.{HEADS[Head.SLOT]}."
"""Parameters that depend on the number of slots, and are never part of a partial transfer."""

AFTER_SLOT = tuple(f"heads.networks.{HEADS[head]}.0.weight" for head in Head if head > Head.SLOT)
"""Weights whose inputs are, with conditional heads: trunk, one-hot(op), one-hot(slot), features of the chosen slot."""


def check_source(record: dict[str, Any], config: Config) -> None:
    """Refuse a checkpoint whose policy differs in shape, or in the meaning of its inputs and choices.

    Raises:
        CheckpointError: the configurations differ; the message names the difference and the remedy.
    """
    path = config.checkpoint.path
    assert path is not None, "there is a checkpoint"
    saved = to_plain(config_of(record, path))
    fixed = [line for line in differences(saved, to_plain(config)) if line.startswith(FIXED)]
    fixed = [line for line in fixed if not line.startswith("policy.compile")]
    if fixed:
        raise CheckpointError(f"checkpoint.path: {path} has {'; '.join(fixed)}: use the same, or train from scratch")
    if config.checkpoint.partial:
        return
    way_out = "train from scratch, or use checkpoint.partial=true, which keeps the initial slot head and input layer"
    if record["num_slots"] not in (None, config.slots.num_slots):
        raise CheckpointError(
            f"checkpoint.path: {path} has a policy of {record['num_slots']} slots, slots.num_slots is "
            f"{config.slots.num_slots}: {way_out}"
        )
    task = saved["task"]["name"]
    if task != config.task.name:
        raise CheckpointError(
            f"checkpoint.path: {path} was trained on task {task!r}, task is {config.task.name!r}: {way_out}"
        )


def transfer(record: dict[str, Any], policy: GrowthPolicy, normaliser: Normaliser, partial: bool) -> list[str]:
    """Load a checkpoint's policy and normaliser, completely or in part.

    Args:
        record: a checkpoint that :func:`check_source` accepts.
        policy, normaliser: changed in place.
        partial: load everything but slot head and input layer; statistics of slot features are then pooled over all
            slots.

    Returns:
        Names of the parameters that keep their initial values.
    """
    if not partial:
        restore_policy(record, policy, normaliser)
        return []
    left, merged = [], policy.state_dict()
    for name, own in merged.items():
        saved: Tensor = record["policy"][name]
        if name.startswith((INPUT_LAYER, SLOT_HEAD)):
            left.append(name)
        elif saved.shape == own.shape:
            merged[name] = saved
        elif name not in AFTER_SLOT:
            raise CheckpointError(
                f"the checkpoint's {name} has shape {list(saved.shape)}, this configuration's {list(own.shape)}: only "
                "what depends on the number of slots may differ"
            )
        else:
            number_at = policy.lstm_dim + NUM_OPS
            merged[name] = _other_columns(saved, own, number_at, record["num_slots"], policy.num_slots)
            left.append(f"{name} (inputs for the slot's number)")
    policy.load_state_dict(merged)
    moments = {name: value.clone() for name, value in record["normaliser"].items()}
    if record["num_slots"] not in (None, policy.num_slots):
        moments |= _of_all_slots(moments, record["num_slots"], policy.num_slots, policy.num_probes)
    normaliser.load_state_dict(moments)
    return left


def _other_columns(saved: Tensor, own: Tensor, at: int, saved_slots: int, own_slots: int) -> Tensor:
    """Return ``saved`` with the columns of one-hot(slot), which begin at ``at``, taken from ``own``."""
    saved = saved.to(own.device)
    return torch.cat([saved[:, :at], own[:, at : at + own_slots], saved[:, at + saved_slots :]], dim=1)


def _of_all_slots(moments: dict[str, Tensor], saved_slots: int, own_slots: int, num_probes: int) -> dict[str, Tensor]:
    """Convert mean and squared deviations ``[D]`` to another number of slots: every slot gets those pooled over all
    saved ones.
    """
    widths = (NUM_SLOT_FEATURES, num_probes)
    per_slot = [saved_slots * width for width in widths]
    blocks = [NUM_BASE_FEATURES, *per_slot, len(moments["mean"]) - NUM_BASE_FEATURES - sum(per_slot)]
    means, deviations = (list(torch.split(moments[name], blocks)) for name in ("mean", "m2"))
    for block, width in enumerate(widths, start=1):
        mean, m2 = (part[block].view(saved_slots, width) for part in (means, deviations))
        centre = mean.mean(0)
        means[block] = centre.repeat(own_slots)
        deviations[block] = (m2 + moments["count"] * (mean - centre).square()).mean(0).repeat(own_slots)
    return {"mean": torch.cat(means), "m2": torch.cat(deviations)}
