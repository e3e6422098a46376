"""Checkpoints: tensors and plain types only, versioned, written atomically, loaded with ``weights_only``.

All tensors are on the CPU, so that a run can be resumed on other devices than those that wrote its checkpoint.

Every checkpoint holds the policy, its normaliser and the configuration, which is all that acting needs. ``last.pt``
also holds the training state (:mod:`esper.training.trainer`), from which a run resumes; the other checkpoints do not.
``num_slots`` is the only number of slots that the policy can act on, ``None`` for a policy of any number.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.config import UsageError, from_plain
from esper.config.errors import refused
from esper.config.root import Config
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.files import replacing
from esper.runtime.run_folder import RunFolder
from esper.runtime.state import State, damage, on_cpu, parts
from esper.runtime.user_code import in_one_line

FORMAT = "esper-checkpoint"
VERSION = 3


class CheckpointError(ValueError):
    """An unusable checkpoint. The message names the file and the remedy."""


def save_checkpoint(
    path: Path,
    *,
    policy: GrowthPolicy,
    normaliser: Normaliser,
    iteration: int,
    config: dict[str, Any],
    training: State | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint atomically: a reader, or a crash, sees the old file or the new one, never a part.

    Args:
        path: file to write.
        policy, normaliser: components whose states are saved.
        iteration: number of completed iterations.
        config: the effective configuration as plain types.
        training: training state for resuming.
        origin: provenance of a policy that is passed on without its run folder, as plain types.
    """
    record = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": iteration,
        "num_slots": None if policy.for_any_slots else policy.num_slots,
        "policy": policy.state_dict(),
        "normaliser": normaliser.state_dict(),
        "config": config,
    }
    if training is not None:
        record["training"] = training
    if origin is not None:
        record["origin"] = dict(origin)
    record = on_cpu(record)
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(record | {"parts": parts(record)}, file)
        file.flush()
        os.fsync(file.fileno())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Raises:
        CheckpointError: the file is missing, truncated, not one of Esper's checkpoints, of another version, lacks a
            part, or holds a policy whose numbers are not finite.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"no checkpoint at {path}")
        path.open("rb").close()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's error for a foreign file
            record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a truncated or foreign file
        raise CheckpointError(f"{path} is truncated or not a checkpoint ({type(error).__name__})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not an Esper checkpoint")
    version = record.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        does = (
            f"up to {VERSION}: update Esper"
            if newer
            else f"{VERSION}: use the one that wrote it, or train from scratch"
        )
        raise CheckpointError(f"{path} has checkpoint version {version}; this Esper reads {does}")
    wanted = record.pop("parts", None)
    what = "part 'parts' is missing" if not isinstance(wanted, dict) else damage(wanted, record)
    if what is not None:
        raise CheckpointError(f"{path} is damaged: {what}; restore an intact copy of it, or train from scratch")
    for part in ("policy", "normaliser"):
        _check_finite(path, part, record[part])
    return record


def _check_finite(path: Path, part: str, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        broken = int((~tensor.isfinite()).sum())
        if broken:
            raise CheckpointError(
                f"{path}: {broken} of {tensor.numel()} numbers of its {part}'s {name} are not finite, so it decides "
                "nothing: choose an earlier checkpoint of that run (checkpoints/), or train from scratch"
            )


@contextmanager
def loading(path: Path | str) -> Iterator[None]:
    """Report any error in loading parts of a checkpoint in one line that names the file.

    Raises:
        CheckpointError: for every exception, since a damaged file may cause any.
    """
    try:
        yield
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error
    except Exception as error:
        raise CheckpointError(f"{path} cannot be used here: {in_one_line(error)}") from error


def config_of(record: dict[str, Any], path: Path | str) -> Config:
    """Return the configuration of the run that a checkpoint belongs to.

    Raises:
        CheckpointError: it is not valid for this version of Esper.
    """
    try:
        with refused(Config):
            return from_plain(record["config"], Config)
    except UsageError as error:
        raise CheckpointError(f"{path} is of a configuration that cannot be used here: {error}") from None


def checkpoint_path(name: str) -> Path:
    """Return the file of a checkpoint, given its name or a run folder, whose last one is taken."""
    path = Path(name)
    return RunFolder(path).last_checkpoint if path.is_dir() else path


def restore_policy(record: dict[str, Any], policy: GrowthPolicy, normaliser: Normaliser) -> None:
    """Load a checkpoint's policy and normaliser into ones of the same shape.

    Raises:
        CheckpointError: the checkpoint belongs to another number of slots, or to a policy of other widths or features.
            Nothing is loaded then.
    """
    if record["num_slots"] not in (None, policy.num_slots):
        raise CheckpointError(
            f"the checkpoint's policy has {record['num_slots']} slots, this configuration {policy.num_slots}: "
            f"set slots.num_slots={record['num_slots']} or train from scratch; "
            "a run that starts from it with checkpoint.partial=true takes over what fits"
        )
    _check_shapes(record["policy"], policy.state_dict())
    _check_shapes(record["normaliser"], normaliser.state_dict())
    policy.load_state_dict(record["policy"])
    normaliser.load_state_dict(record["normaliser"])


def _check_shapes(saved: dict[str, Tensor], present: dict[str, Tensor]) -> None:
    for name in sorted(saved.keys() | present.keys()):
        shapes = [list(tensors[name].shape) if name in tensors else None for tensors in (saved, present)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the checkpoint's {name} has shape {shapes[0]}, this configuration's {shapes[1]}: "
                "use the policy.* and observation.* of its own configuration, which it holds, or train from scratch"
            )
