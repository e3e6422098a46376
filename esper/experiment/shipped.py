"""Trained controllers that come with Esper: checkpoints without training state, in ``esper/controllers/shipped``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from esper.controllers import Learned
from esper.experiment.acting import trained_policy
from esper.experiment.checkpoint import (
    CheckpointError,
    checkpoint_path,
    config_of,
    load_checkpoint,
    save_checkpoint,
)
from esper.runtime.controller_names import LEARNED
from esper.runtime.rng import generator

FOLDER = Path(__file__).parents[1] / "controllers" / "shipped"


def shipped_controllers() -> dict[str, Path]:
    """Return the checkpoints of all shipped controllers by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.pt"))}


def controller_path(source: str | Path) -> Path:
    """Return the checkpoint of a name: a checkpoint or run folder, or else a shipped controller of that name.

    If there is none of them, the file that is returned does not exist.
    """
    path = checkpoint_path(str(source))
    return path if os.path.exists(path) else shipped_controllers().get(str(source), path)


def load_controller(
    source: str | Path,
    num_envs: int = 1,
    *,
    num_slots: int | None = None,
    deterministic: bool = True,
    seed: int = 0,
) -> Learned:
    """Load a trained controller, to act in an environment of the kind that it was trained in, greedily by the rule of
    its run (``evaluation.greedy``).

    Args:
        source: name of a shipped controller, a checkpoint, or a run folder, whose last checkpoint is taken. What is at
            that path comes before a shipped controller of the same name.
        num_envs: number of environments to act in.
        num_slots: number of slots, for a controller of any number; ``None`` for that of its training.
        deterministic: take the most probable choices instead of sampling.
        seed: seed of sampling.

    Raises:
        TypeError: ``source`` is neither a name nor a path.
        CheckpointError: there is no such controller, or it cannot be used here.
    """
    if not isinstance(source, str | Path):
        raise TypeError(
            f"controller: a {type(source).__name__} is neither a name nor a path: give a checkpoint, a run folder or a "
            f"shipped controller ({', '.join(shipped_controllers())})"
        )
    path = controller_path(source)
    if not path.exists():
        raise CheckpointError(
            f"controller: {str(source)!r} is no checkpoint, run folder or shipped controller; the shipped ones are "
            f"{', '.join(shipped_controllers())}"
        )
    record = load_checkpoint(path)
    config = config_of(record, path)
    policy, normaliser = trained_policy(record, config, num_slots)
    return Learned(
        policy,
        normaliser,
        num_envs,
        generator=generator("controller", LEARNED, seed),
        deterministic=deterministic,
        greedy=config.evaluation.greedy,
    )


def ship(checkpoint: Path, name: str, origin: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write a policy as a shipped controller, and its provenance beside it as JSON.

    Heads that have a single choice take no room: their parameters, which have no effect, are zeros of one number.

    Args:
        checkpoint: checkpoint of a training run. Its training state is left out.
        name: name of the controller.
        origin: provenance, in JSON types; the iteration is added.
        folder: folder for both files.

    Returns:
        The file of the policy, which is a checkpoint too.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """
    record = load_checkpoint(checkpoint)
    config = config_of(record, checkpoint)
    policy, normaliser = trained_policy(record, config)
    for head, choices in asdict(config.policy.choices).items():
        if len(choices) == 1:
            for parameter in policy.heads.networks[head].parameters():
                parameter.data = parameter.new_zeros(()).expand(parameter.shape)
    told = {"iteration": record["iteration"], **origin}
    path = folder / f"{name}.pt"
    save_checkpoint(
        path,
        policy=policy,
        normaliser=normaliser,
        iteration=record["iteration"],
        config=record["config"],
        origin=told,
    )
    path.with_suffix(".json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return path
