"""Start of a run from Python, with the checks of the command line."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path
from typing import Any

from esper.config.errors import UsageError, refused
from esper.launch.cli import Check
from esper.launch.entries import Entry
from esper.launch.spawn import launch
from esper.runtime.run_folder import RunFolder


def run_directly(entry: Entry, config: Any, run_dir: str | Path | None, check: Check) -> RunFolder:
    """Check a configuration, and run it on its devices.

    Args:
        entry: the entry point.
        config: its configuration.
        run_dir: run folder; ``None`` for one of the configuration's name below ``outputs/``, with a number if it is
            there already.
        check: raises ``ValueError`` for a configuration that cannot run.

    Raises:
        UsageError: the configuration cannot run, in one line.
    """
    if run_dir is None and getattr(config, "resume", None) is not None:
        raise UsageError(f"resume={config.resume}: from Python the folder of the run is run_dir=, with resume='auto'")
    with refused(entry.schema):
        check(config)
    folder = unused(Path("outputs", config.name)) if run_dir is None else Path(run_dir)
    launch(entry, config, folder)
    return RunFolder(folder)


def unused(folder: Path) -> Path:
    """Return a folder if it is not there, otherwise the first of ``<folder>-2``, ``<folder>-3``, … that is not."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(each for each in chain([folder], others) if not each.exists())
