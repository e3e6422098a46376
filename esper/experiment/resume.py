"""Going on with a run: which folder holds it, and in what a continued run may differ from what it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from esper.config.errors import UsageError, refused
from esper.config.growth import Mapping as HostMapping
from esper.config.naming import DERIVED
from esper.config.root import Config
from esper.config.store import from_yaml, plain_yaml, to_plain
from esper.runtime.run_folder import RunCondition, RunFolder

AUTO = "auto"
MAPPING = "env.mapping"

NOT_IDENTITY = ("name", "resume", "telemetry", "wandb", *DERIVED)
"""Keys that do not change what a run computes: configurations that differ in nothing else are the same."""

FREE = (*NOT_IDENTITY, "devices", "num_threads", "evaluation", "trainer.num_iterations", "trainer.checkpoint_every")
"""Keys in which a run may be continued otherwise than it was begun."""


def identity(config: Config) -> dict[str, Any]:
    """What makes two runs the same, as dotted keys and plain values."""
    return {key: value for key, value in flat(to_plain(config)).items() if not _among(key, NOT_IDENTITY)}


def configuration_hash(config: Config) -> str:
    """Ten letters that two configurations share exactly if they are the same; ``seed`` counts."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:10]


def differences(saved: Mapping[str, Any], asked: Config, free: Sequence[str] = NOT_IDENTITY) -> list[str]:
    """Keys in which a run differs from what is asked for, as ``key=<saved>, not <asked>``.

    Args:
        saved: configuration of a run as plain values, with the mapping that it chose.
        asked: another; ``env.mapping=auto`` agrees with whatever was chosen.
        free: keys and sections that do not count.
    """
    before, now = flat(saved), flat(to_plain(asked))
    if asked.env.mapping is HostMapping.auto:
        now[MAPPING] = before.get(MAPPING)
    keys = [key for key in sorted(before.keys() | now.keys()) if not _among(key, free)]
    return [f"{key}={before.get(key)}, not {now.get(key)}" for key in keys if before.get(key) != now.get(key)]


def saved_text(folder: RunFolder) -> str:
    """The configuration of the run in a folder, as YAML.

    Raises:
        UsageError: there is none.
    """
    try:
        return folder.config.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"resume: {folder.path} is no run folder (no {folder.config.name}: {error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"resume: {folder.path} is no run folder ({folder.config.name} is no text)") from None


def saved_config(folder: RunFolder) -> Config:
    """The configuration of the run in a folder.

    Raises:
        UsageError: there is none of a training run.
    """
    text = saved_text(folder)
    try:
        with refused(Config):
            return from_yaml(text, Config)
    except UsageError as error:
        raise UsageError(f"resume: {folder.config} is not of a run that can go on here: {error}") from None


def interrupted_run(parent: Path, asked: Config) -> Path | None:
    """The newest folder below ``parent`` with an interrupted or failed run of the same configuration, if any."""
    found = []
    for config in parent.glob("*/config.yaml"):
        folder = RunFolder(config.parent)
        if folder.condition() in (RunCondition.INTERRUPTED, RunCondition.FAILED) and _same(folder, asked):
            found.append(folder.path)
    return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def _same(folder: RunFolder, asked: Config) -> bool:
    # As plain values: to load it would import the plugins of a run that may be another one.
    try:
        with refused(Config):
            return not differences(plain_yaml(saved_text(folder)), asked)
    except UsageError:  # whatever it is, it is no run of this configuration
        return False


def require_continuable(folder: RunFolder, asked: Config) -> Config:
    """The configuration with which the run in a folder goes on: its own, but what may change as asked.

    Raises:
        UsageError: more than that is asked to change, or there is no configuration of a training run.
    """
    saved = saved_config(folder)
    changed = differences(to_plain(saved), asked, FREE)
    if changed:
        raise UsageError(
            f"the run in {folder.path} has {'; '.join(changed)}: a continued run keeps that. Leave it out, or start a "
            "new run in another folder"
        )
    return replace(asked, name=saved.name, resume=None, env=replace(asked.env, mapping=saved.env.mapping))


def _among(key: str, chosen: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in chosen)


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
