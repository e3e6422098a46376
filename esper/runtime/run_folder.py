"""The run folder: files of a run, and the state that it is in.

* ``config.yaml``: the effective configuration.
* ``metrics.jsonl``: one line per iteration; ``events.jsonl``: lifecycle, gates, anomalies.
* ``status.json``: running, finished, failed with a traceback, or preempted.
* ``result.json``: scores and provenance; ``checkpoints/``; ``plots/``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from esper.runtime.files import is_at, try_lock, write_atomic
from esper.runtime.placement import PeerLost
from esper.runtime.preemption import Preempted
from esper.runtime.records import json_safe

LOCK_SECONDS = 5.0
"""Longest wait in seconds for a folder whose last writer is just ending."""

CHOOSE = ": choose a folder where you may write"

HALF_WRITTEN = ".*.tmp"
"""Pattern of temporary files that a process leaves behind if it is killed while writing."""


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"


class RunCondition(StrEnum):
    """Possible use of a folder, derived from more than its status file.

    A killed run cannot update its status: ``interrupted`` means preempted, or marked as running without a process.
    """

    EMPTY = "empty"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"


class RunFolderError(ValueError):
    """A run folder cannot be used. The message names the path and the remedy."""


def final_state(error: BaseException | None) -> RunState:
    """Return the final state of a run that ended with this exception, or with none. An interrupt is a preemption."""
    if error is None:
        return RunState.FINISHED
    return RunState.PREEMPTED if isinstance(error, KeyboardInterrupt | Preempted) else RunState.FAILED


class _Part:
    """Descriptor for the path of a file or folder within a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, and operations on its folder."""

    path: Path

    config = _Part("config.yaml")
    metrics, events = _Part("metrics.jsonl"), _Part("events.jsonl")
    status_file, result = _Part("status.json"), _Part("result.json")
    checkpoints, plots = _Part("checkpoints"), _Part("plots")
    last_checkpoint = _Part("checkpoints/last.pt")
    """Checkpoint that an interrupted run resumes from."""
    grown = _Part("grown")
    """Networks of held-out hosts, one file each, if the run keeps any."""
    lock_file = _Part(".lock")
    """Lock held by the process that writes."""

    @classmethod
    def create(cls, path: Path | str, config_yaml: str, *, checkpoints: bool = True) -> RunFolder:
        """Claim a folder for a new run and save its configuration there.

        The folder may exist (Hydra makes it beforehand) as long as it holds no run.

        Args:
            path: the folder.
            config_yaml: configuration of the run.
            checkpoints: make a folder for checkpoints; an evaluation has none.

        Raises:
            RunFolderError: the folder already holds a run, or cannot be made or written.
        """
        folder = cls(Path(path))
        leftovers: list[str] = []
        with folder._writing(CHOOSE):
            try:
                leftovers = [path.name for path in (folder.metrics, folder.status_file, folder.result) if path.exists()]
                if leftovers:
                    raise FileExistsError
                folder.plots.mkdir(parents=True, exist_ok=True)
                if checkpoints:
                    folder.checkpoints.mkdir(exist_ok=True)
                # "x" fails if the file exists, so that of two runs started at once on one folder only one continues.
                file = folder.config.open("x", encoding="utf-8")
            except FileExistsError:
                if not folder.path.is_dir():
                    raise
                found = ", ".join(leftovers) or folder.config.name
                raise RunFolderError(
                    f"run folder {folder.path} already holds a run ({found}): choose another folder or remove it"
                ) from None
            try:
                with file:
                    file.write(config_yaml)
            except BaseException:  # nothing half-written
                folder.config.unlink()
                raise
        return folder

    def reopen(self, config_yaml: str, positions: Mapping[str, int]) -> None:
        """Reopen a folder to resume its run: remove lines written after the checkpoint, and a result of fewer
        iterations.

        Args:
            config_yaml: configuration of the run from now on.
            positions: length in bytes of each JSONL file at the checkpoint, by name; 0 for a missing one.

        Raises:
            RunFolderError: a file is shorter than the checkpoint says, or cannot be written.
        """
        files = [(path, positions.get(path.name, 0)) for path in (self.metrics, self.events)]
        for path, size in files:
            there = path.stat().st_size if path.exists() else 0
            if there < size:
                raise RunFolderError(
                    f"{path} has {there} bytes, but its checkpoint was written after {size}: it was cut or replaced, "
                    "so the run cannot be continued"
                )
        with self._writing():
            self.checkpoints.mkdir(exist_ok=True)
            self.plots.mkdir(exist_ok=True)
            for path, size in files:
                if path.exists():
                    os.truncate(path, size)
            for half in (*self.path.glob(HALF_WRITTEN), *self.checkpoints.glob(HALF_WRITTEN)):
                half.unlink()
            self.result.unlink(missing_ok=True)
            write_atomic(self.config, config_yaml)

    def positions(self) -> dict[str, int]:
        """Return the current length in bytes of each JSONL file, by name, for :meth:`reopen`."""
        return {path.name: path.stat().st_size for path in (self.metrics, self.events) if path.exists()}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here; the system releases the lock however the process ends.

        A folder in which no run has started by the end is removed.

        Raises:
            RunFolderError: another process is using it, or the folder cannot be made.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        file = self._open_lock()
        # The locked file must still be in the folder: its last holder may have removed both.
        while not (try_lock(file) and is_at(file, self.lock_file)):
            file.close()
            if time.monotonic() > deadline:
                raise RunFolderError(f"another process writes to run folder {self.path}: let it end first")
            time.sleep(0.1)
            file = self._open_lock()
        with file, self.left_if_used():
            yield

    def _open_lock(self) -> IO[str]:
        with self._writing(CHOOSE):
            self.path.mkdir(parents=True, exist_ok=True)
            return self.lock_file.open("a", encoding="utf-8")

    @contextlib.contextmanager
    def _writing(self, remedy: str = "") -> Iterator[None]:
        """Report an error of the file system in one line with the remedy."""
        try:
            yield
        except OSError as error:
            raise RunFolderError(
                f"run folder {self.path} cannot be written ({error.strerror or error}){remedy}"
            ) from None

    @contextlib.contextmanager
    def left_if_used(self) -> Iterator[None]:
        """Remove the folder at the end if no run has started here, and it holds nothing but this process's lock."""
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # gone already, or in use, or not ours to remove
                if not self.holds_run and set(self.path.iterdir()) <= {self.lock_file}:
                    self.lock_file.unlink(missing_ok=True)
                    self.path.rmdir()

    def condition(self) -> RunCondition:
        """Return whether a run is here and in which condition, as seen by other processes."""
        if not self.holds_run:
            return RunCondition.EMPTY
        if self._is_locked():
            return RunCondition.RUNNING
        if self.result.exists():
            return RunCondition.FINISHED
        if self.state in (RunState.FINISHED, RunState.FAILED):
            return RunCondition(self.state)
        return RunCondition.INTERRUPTED

    @property
    def holds_run(self) -> bool:
        """True if a run has started here."""
        return self.status_file.exists() or self.config.exists()

    @property
    def state(self) -> RunState | None:
        """State in the status file, ``None`` if there is no valid one."""
        found = self.read_status().get("state")
        return RunState(found) if found in tuple(RunState) else None

    def _is_locked(self) -> bool:
        if not self.lock_file.exists():
            return False
        with contextlib.suppress(FileNotFoundError), self.lock_file.open(encoding="utf-8") as file:
            return not try_lock(file)
        return False

    def read_status(self) -> dict[str, Any]:
        """Read the status file; return an empty dict for a damaged one, as after a full disk or a power cut."""
        try:
            found = json.loads(self.status_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def kept_checkpoint(self, iteration: int) -> Path:
        """Return the path of the checkpoint kept for an iteration."""
        return self.checkpoints / f"iteration-{iteration:05d}.pt"

    def status(self, state: RunState | str, **extra: object) -> None:
        """Write ``status.json`` atomically: the state, the time (UTC), the process, and ``extra``."""
        record = {
            "state": str(RunState(state)),
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "pid": os.getpid(),
            **extra,
        }
        write_atomic(self.status_file, _pretty(record))

    @property
    def failed_on(self) -> int | None:
        """Rank that failed according to the status file, ``None`` if it says anything else."""
        status = self.read_status()
        return status.get("rank") if status.get("state") == RunState.FAILED else None

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write ``result.json`` atomically; NaN and infinities become ``null``."""
        write_atomic(self.result, _pretty(result))


def _pretty(record: Mapping[str, object]) -> str:
    return json.dumps(json_safe(record), indent=2, allow_nan=False) + "\n"


@contextlib.contextmanager
def run_status(folder: RunFolder, rank: int = 0) -> Iterator[RunFolder]:
    """Update ``status.json`` around a run: running, then finished, failed with a traceback, or preempted.

    Later ranks only report failures; a rank that lost another one, or is then asked to stop, keeps the other's report.
    """
    if rank == 0:
        folder.status(RunState.RUNNING)
    try:
        yield folder
    except BaseException as error:
        # Work after the result exists, such as printing it, does not count.
        state = RunState.FINISHED if folder.result.exists() else final_state(error)
        follows = isinstance(error, PeerLost) or state is RunState.PREEMPTED
        if (rank > 0 and state is not RunState.FAILED) or (follows and folder.failed_on is not None):
            raise
        extra = {"rank": rank, "traceback": traceback.format_exc()} if state is RunState.FAILED else {}
        try:
            if folder.state is not state:  # a stopped run has already recorded where
                folder.status(state, **extra)
        except OSError as unwritten:  # the first error is the one to report
            error.add_note(f"status.json could not be written either ({unwritten})")
        raise
    if rank == 0:
        folder.status(RunState.FINISHED)


@contextlib.contextmanager
def stop_told(folder: RunFolder, tell: Callable[[str], object]) -> Iterator[None]:
    """Report which signal stopped the run in a folder, unless the run had finished before.

    Args:
        folder: folder of the run.
        tell: function that receives the signal's name.
    """
    try:
        yield
    except Preempted as stopped:
        if folder.state is not RunState.FINISHED:
            tell(signal.Signals(stopped.number).name)
        raise
