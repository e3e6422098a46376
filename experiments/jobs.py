"""Training runs of a study: each is made once, a few at a time, and read when all are there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

QUIET = ("telemetry.console=off", "telemetry.plots=false")
"""What a study leaves out of every run."""
GO_ON = "resume=auto"
"""A run that was interrupted goes on when its study is made again."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run: its folder, and the words that follow ``python -m esper.train``."""

    folder: Path
    words: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether its result is there."""
        return (self.folder / "result.json").exists()

    def run(self) -> None:
        """Make it or go on with it, unless it is there; raises ``CalledProcessError`` if it fails."""
        if not self.is_done:
            command = [sys.executable, "-m", "esper.train", *self.words, *QUIET, GO_ON, f"hydra.run.dir={self.folder}"]
            subprocess.run(command, check=True)


def make(jobs: Sequence[Job], at_once: int = 1) -> None:
    """Make all runs that are not there yet; one that fails is raised when the others have been made.

    Args:
        jobs: in the order in which they start.
        at_once: processes beside each other; no more than there are cores, or they only slow one another down.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(job.run) for job in jobs]
    for future in futures:
        future.result()
