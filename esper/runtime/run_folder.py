"""The run folder: what a run leaves behind, and the state it is in.

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
from esper.runtime.preemption import Preempted
from esper.runtime.ranks import PeerLost
from esper.runtime.records import json_safe

LOCK_SECONDS = 5.0
"""Longest wait for a folder whose last writer is just ending."""

HALF_WRITTEN = ".*.tmp"
"""What a process that is killed while it writes a file leaves beside it."""


class RunState(StrEnum):
    """How far a run got."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"


class RunCondition(StrEnum):
    """What can be done with a folder, whatever its status file still says.

    A run that was killed has no chance to say so: ``interrupted`` is preempted, or said to be running by nobody.
    """

    EMPTY = "empty"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"


class RunFolderError(ValueError):
    """A run folder cannot be used. The message names the path and what to do."""


def final_state(error: BaseException | None) -> RunState:
    """The state of a run that ended with this exception, or with none. An interrupt is a preemption."""
    if error is None:
        return RunState.FINISHED
    return RunState.PREEMPTED if isinstance(error, KeyboardInterrupt | Preempted) else RunState.FAILED


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path | str, config_yaml: str, *, checkpoints: bool = True) -> RunFolder:
        """Claim a folder for a new run and save its configuration there.

        A folder that exists is fine (Hydra makes it beforehand) as long as no run is in it.

        Args:
            path: the folder.
            config_yaml: configuration of the run.
            checkpoints: whether it will have any; an evaluation has none.

        Raises:
            RunFolderError: the folder already holds a run, or cannot be made or written.
        """
        folder = cls(Path(path))
        leftovers: list[str] = []
        try:
            leftovers = [path.name for path in (folder.metrics, folder.status_file, folder.result) if path.exists()]
            if leftovers:
                raise FileExistsError
            folder.plots.mkdir(parents=True, exist_ok=True)
            if checkpoints:
                folder.checkpoints.mkdir(exist_ok=True)
            # "x" fails if the file is there, so that of two runs started at once on one folder only one goes on.
            with folder.config.open("x", encoding="utf-8") as file, _unmade(folder.config):
                file.write(config_yaml)
                file.flush()
        except OSError as error:
            if isinstance(error, FileExistsError) and folder.path.is_dir():
                found = ", ".join(leftovers) or folder.config.name
                raise RunFolderError(
                    f"run folder {folder.path} already holds a run ({found}): choose another folder or remove it"
                ) from None
            raise RunFolderError(
                f"run folder {folder.path} cannot be written ({error.strerror or error}): "
                "choose a folder where you may write"
            ) from None
        return folder

    def reopen(self, config_yaml: str, positions: Mapping[str, int]) -> None:
        """Take a folder up again: forget what was written after a checkpoint, and a result of fewer iterations.

        Args:
            config_yaml: configuration of the run from now on.
            positions: bytes of each JSONL file that the checkpoint knows of, by name; 0 for one that is left out.

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
        try:
            self.checkpoints.mkdir(exist_ok=True)
            self.plots.mkdir(exist_ok=True)
            for path, size in files:
                if path.exists():
                    os.truncate(path, size)
            for half in (*self.path.glob(HALF_WRITTEN), *self.checkpoints.glob(HALF_WRITTEN)):
                half.unlink()
            self.result.unlink(missing_ok=True)
            write_atomic(self.config, config_yaml)
        except OSError as error:
            raise RunFolderError(f"run folder {self.path} cannot be written ({error.strerror or error})") from None

    def positions(self) -> dict[str, int]:
        """Bytes of each JSONL file now, by name: what :meth:`reopen` goes back to."""
        return {path.name: path.stat().st_size for path in (self.metrics, self.events) if path.exists()}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here; the system lets go of it when the process ends, however it ends.

        A folder in which no run has begun until then is removed.

        Raises:
            RunFolderError: another process is at work here, or the folder cannot be made.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        file = self._open_lock()
        # What was locked must still be in the folder: its last holder may have removed it with the folder.
        while not (try_lock(file) and is_at(file, self.lock_file)):
            file.close()
            if time.monotonic() > deadline:
                raise RunFolderError(f"another process writes to run folder {self.path}: let it end first")
            time.sleep(0.1)
            file = self._open_lock()
        with file, self.left_if_used():
            yield

    def _open_lock(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return self.lock_file.open("a", encoding="utf-8")
        except OSError as error:
            raise RunFolderError(
                f"run folder {self.path} cannot be written ({error.strerror or error}): "
                "choose a folder where you may write"
            ) from None

    @contextlib.contextmanager
    def left_if_used(self) -> Iterator[None]:
        """Remove the folder at the end if no run has begun here, and nothing but this process's lock is in it."""
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # gone already, or in use, or not ours to remove
                if not self.holds_run and set(self.path.iterdir()) <= {self.lock_file}:
                    self.lock_file.unlink(missing_ok=True)
                    self.path.rmdir()

    def condition(self) -> RunCondition:
        """Whether a run is here, and how it stands, as others than its own process see it."""
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
        """Whether a run has begun here."""
        return self.status_file.exists() or self.config.exists()

    @property
    def state(self) -> RunState | None:
        """What the status file says, ``None`` if it says nothing that is a state."""
        found = self._status().get("state")
        return RunState(found) if found in tuple(RunState) else None

    def _is_locked(self) -> bool:
        if not self.lock_file.exists():
            return False
        with contextlib.suppress(FileNotFoundError), self.lock_file.open(encoding="utf-8") as file:
            return not try_lock(file)
        return False

    def _status(self) -> dict[str, Any]:
        """What the status file says; one that is broken, as by a full disk or a power cut, says nothing."""
        try:
            found = json.loads(self.status_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def last_checkpoint(self) -> Path:
        """What an interrupted run goes on from."""
        return self.checkpoints / "last.pt"

    def kept_checkpoint(self, iteration: int) -> Path:
        """What stays of an iteration at which one is kept."""
        return self.checkpoints / f"iteration-{iteration:05d}.pt"

    @property
    def lock_file(self) -> Path:
        """Held by the process that writes."""
        return self.path / ".lock"

    @property
    def config(self) -> Path:
        """Effective configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One line per iteration."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """One line per event."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Folder of PNGs."""
        return self.path / "plots"

    @property
    def result(self) -> Path:
        """Scores and provenance, there once the run has finished."""
        return self.path / "result.json"

    @property
    def status_file(self) -> Path:
        """State of the run."""
        return self.path / "status.json"

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
        """The rank that the status says has failed, ``None`` if it says anything else."""
        status = self._status()
        return status.get("rank") if status.get("state") == RunState.FAILED else None

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write ``result.json`` atomically; NaN and infinities become ``null``."""
        write_atomic(self.result, _pretty(result))


@contextlib.contextmanager
def _unmade(path: Path) -> Iterator[None]:
    """Remove a file that cannot be written whole."""
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _pretty(record: Mapping[str, object]) -> str:
    return json.dumps(json_safe(record), indent=2, allow_nan=False) + "\n"


@contextlib.contextmanager
def run_status(folder: RunFolder, rank: int = 0) -> Iterator[RunFolder]:
    """Keep ``status.json`` right around a run: running, then finished, failed with a traceback, or preempted.

    Later ranks only report that they failed; a rank that lost another one leaves that one's report as it is.
    """
    if rank == 0:
        folder.status(RunState.RUNNING)
    try:
        yield folder
    except BaseException as error:
        # What is left once the result is there, such as to show it, is not part of the work.
        state = RunState.FINISHED if folder.result.exists() else final_state(error)
        if (rank > 0 and state is not RunState.FAILED) or (
            isinstance(error, PeerLost) and folder.failed_on is not None
        ):
            raise
        extra = {"rank": rank, "traceback": traceback.format_exc()} if state is RunState.FAILED else {}
        try:
            if folder.state is not state:  # a run that was stopped has said where
                folder.status(state, **extra)
        except OSError as unwritten:  # the first error is the one to report
            error.add_note(f"status.json could not be written either ({unwritten})")
        raise
    if rank == 0:
        folder.status(RunState.FINISHED)


@contextlib.contextmanager
def stop_told(folder: RunFolder, tell: Callable[[str], object]) -> Iterator[None]:
    """Tell which signal stopped the run in a folder, unless it had finished when the signal came.

    Args:
        folder: of the run.
        tell: is given the signal's name.
    """
    try:
        yield
    except Preempted as stopped:
        if folder.state is not RunState.FINISHED:
            tell(signal.Signals(stopped.number).name)
        raise
