"""Training runs of a study: run each once, several at a time, and read the results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

QUIET = ("telemetry.console=off", "telemetry.plots=false")
"""Overrides that turn off the console and plots in every run of a study."""
GO_ON = "resume=auto"
"""Override that resumes an interrupted run when its study is repeated."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run: its folder and its arguments to ``python -m esper.train``."""

    folder: Path
    words: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Return whether the run has its result."""
        return (self.folder / "result.json").exists()

    def run(self) -> None:
        """Start or resume the run unless it is finished; raise ``CalledProcessError`` if it fails."""
        if not self.is_done:
            command = [sys.executable, "-m", "esper.train", *self.words, *QUIET, GO_ON, f"hydra.run.dir={self.folder}"]
            subprocess.run(command, check=True)


def make(jobs: Sequence[Job], at_once: int = 1) -> None:
    """Run all unfinished jobs; raise the first failure after the other jobs have ended.

    Args:
        jobs: runs in the order in which they start.
        at_once: simultaneous processes; at most one per core is useful.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(job.run) for job in jobs]
    for future in futures:
        future.result()
