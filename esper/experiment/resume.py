"""Resuming: the search for a run's folder, and the keys that a resumed run may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from esper.config.errors import UsageError, refused
from esper.config.identity import FREE_ON_RESUME, differences
from esper.config.root import Config
from esper.config.store import from_yaml, plain_yaml, to_plain
from esper.runtime.run_folder import RunCondition, RunFolder

AUTO = "auto"


def saved_text(folder: RunFolder) -> str:
    """Return the configuration of the run in a folder, as YAML.

    Raises:
        UsageError: the folder holds no readable configuration.
    """
    try:
        return folder.config.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"resume: {folder.path} is not a run folder (no {folder.config.name}: {error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"resume: {folder.path} is not a run folder ({folder.config.name} is not text)") from None


def saved_config(folder: RunFolder) -> Config:
    """Return the configuration of the run in a folder.

    Raises:
        UsageError: the folder holds no configuration of a training run.
    """
    text = saved_text(folder)
    try:
        with refused(Config):
            return from_yaml(text, Config)
    except UsageError as error:
        raise UsageError(f"resume: {folder.config} is not of a run that can be resumed here: {error}") from None


def interrupted_run(parent: Path, asked: Config) -> Path | None:
    """Find the newest folder below ``parent`` with an interrupted or failed run of the same configuration."""
    found = []
    for config in parent.glob("*/config.yaml"):
        folder = RunFolder(config.parent)
        if folder.condition() in (RunCondition.INTERRUPTED, RunCondition.FAILED) and _same(folder, asked):
            found.append(folder.path)
    return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def _same(folder: RunFolder, asked: Config) -> bool:
    # As plain values, because loading would import the plugins of a possibly different run.
    try:
        with refused(Config):
            return not differences(plain_yaml(saved_text(folder)), to_plain(asked))
    except UsageError:  # in any case not a run of this configuration
        return False


def resumed_config(folder: RunFolder, asked: Config) -> Config:
    """Return the configuration of a resumed run: its own, with the permitted changes.

    Raises:
        UsageError: other changes were requested, or there is no configuration of a training run.
    """
    saved = saved_config(folder)
    changed = differences(to_plain(saved), to_plain(asked), FREE_ON_RESUME)
    if changed:
        raise UsageError(
            f"the run in {folder.path} has {'; '.join(changed)}: a continued run keeps that. Leave it out, or start a "
            "new run in another folder"
        )
    return replace(asked, name=saved.name, resume=None, env=replace(asked.env, mapping=saved.env.mapping))
