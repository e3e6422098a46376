"""One job of a sweep, run by any launcher: resumes the run in its folder, and never ends the sweep by failing."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from esper.config.errors import RunError, UsageError, refused
from esper.config.root import Config
from esper.config.store import load
from esper.experiment.resume import AUTO
from esper.launch.entries import ENTRIES
from esper.runtime.preemption import SIGNALS, Preempted, StopSignals
from esper.runtime.run_folder import RunCondition, RunFolder, RunFolderError, RunState
from esper.runtime.terminal import say, secure

PREEMPTING = signal.SIGUSR2
"""Signal that submitit sends, or asks Slurm to send, before a time limit; ``scancel --signal=USR2 <job>`` sends it
too.
"""

LOCAL_REQUEUE = 144
"""Exit code that makes submitit restart a job on this machine."""

POLL_SECONDS = 0.5
"""Seconds between checks whether the sweep has been asked to end."""

Process = tuple[str, int]
"""Host name of a machine, and a process id on it."""


def this_process() -> Process:
    """Return the current process."""
    return platform.node(), os.getpid()


class JobWork(Protocol):
    """Type of a function that runs one job.

    ``isolated`` runs it in a separate process, so that its death does not end the sweep; ``quiet`` sends its output to
    ``output.log``, since other jobs write to the same terminal.
    """

    def __call__(self, config: Any, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """Callable that a launcher runs for each job.

    Attributes:
        entry: name of the entry point's root configuration.
        work: function that runs one job.
        isolated, quiet: arguments of ``work``.
        total: number of jobs of the sweep, if they run in turn and each announces itself.
        sweep: process of the sweep; a request to end a job that runs in this process ends the sweep.
        ending: file that appears when the sweep is asked to end; jobs in other processes of this machine watch for it.
    """

    entry: str
    work: JobWork
    isolated: bool
    quiet: bool
    total: int | None
    sweep: Process
    ending: Path

    def __call__(self, cfg: DictConfig) -> None:
        secure()  # a launcher's process is not begun by Esper
        run_dir = Path(HydraConfig.get().runtime.output_dir)
        folder, schema = RunFolder(run_dir), ENTRIES[self.entry].schema
        try:
            with refused(schema):
                config = load(cfg, schema)
        except UsageError as error:  # the job's machine may differ from the one that planned the sweep
            _report(folder, error)
            return
        # Requeued after it finished, or started by another sweep in the meantime.
        if folder.condition() in (RunCondition.FINISHED, RunCondition.RUNNING) or self.ending.exists():
            return
        if self.total is not None:
            say(f"{HydraConfig.get().job.num + 1}/{self.total}: {run_dir.name}")
        if isinstance(config, Config):
            config = replace(config, resume=AUTO)
        try:
            with requeued_on_request(), _ended_with_the_sweep(self.sweep, self.ending):
                self.work(config, run_dir, isolated=self.isolated, quiet=self.quiet)
        except Preempted:
            if self.sweep == this_process():
                raise
        # A failing job must not end the others; its traceback is in its run folder.
        except Exception as error:
            _report(folder, error)


def _report(folder: RunFolder, error: Exception) -> None:
    """Mark the run as failed, unless another process owns it or its ranks have already recorded a failure."""
    ours = folder.condition() not in (RunCondition.RUNNING, RunCondition.FINISHED)
    told = isinstance(error, RunError) and folder.state is RunState.FAILED
    if ours and not told:
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.status(RunState.FAILED, traceback=traceback.format_exc())
    shown = str(error) if isinstance(error, UsageError | RunError | RunFolderError) else traceback.format_exc()
    say(f"error: {folder.path.name}: {shown}", stderr=True)


@contextmanager
def _ended_with_the_sweep(sweep: Process, ending: Path) -> Iterator[None]:
    """Pass a request to end the sweep on to this process once; nothing is needed in the sweep's own process."""
    node, process = this_process()
    if sweep[0] != node or sweep[1] == process:
        yield
        return
    with suppress(ProcessLookupError):  # the sweep may be gone
        if os.getpgrp() == os.getpgid(sweep[1]):
            os.setpgid(0, 0)  # an interrupt from the keyboard reaches the sweep alone, which passes it on
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            if ending.exists():
                os.kill(process, signal.SIGTERM)
                return

    with StopSignals():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # submitit's jobs are started with them blocked
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


@contextmanager
def requeued_on_request() -> Iterator[None]:
    """Write a checkpoint and requeue a submitit job on request, as before a time limit.

    The restarted job is the same: it finds the run in its folder and resumes it.
    """
    executor = os.environ.get("SUBMITIT_EXECUTOR")
    if executor not in ("slurm", "local"):
        yield
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.raise_signal(signal.SIGTERM)

    with StopSignals():
        signal.signal(PREEMPTING, ask)
        try:
            yield
        except Preempted as stopped:
            if executor == "slurm":
                if asked:
                    # Slurm ends a requeued job with signals to this process and to scontrol.
                    for number in (*SIGNALS, PREEMPTING):
                        signal.signal(number, signal.SIG_IGN)
                    # No time limit for a busy controller: at worst Slurm ends this job at its limit.
                    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
                _leave(stopped.code)
            if asked:
                _leave(LOCAL_REQUEUE)
            raise


def _leave(code: int) -> NoReturn:
    """End this process without a result, which would make submitit consider the job finished."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
