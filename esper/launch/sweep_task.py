"""One job of a sweep, wherever a launcher runs it: goes on with what is there, and never ends the sweep by failing."""

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
"""What submitit sends, or asks Slurm to send, before a time limit; with ``scancel --signal=USR2 <job>`` anybody can."""

LOCAL_REQUEUE = 144
"""Exit code by which submitit's jobs on this machine are started again."""

POLL_SECONDS = 0.5
"""How often a job looks whether its sweep has been asked to end."""

Process = tuple[str, int]
"""Name of a machine, and a process on it."""


def this_process() -> Process:
    """The process that asks."""
    return platform.node(), os.getpid()


class JobWork(Protocol):
    """What a job does.

    ``isolated`` = in a process of its own, so that its death is not that of the sweep; ``quiet`` = with its output in
    ``output.log``, since other jobs write to the same terminal.
    """

    def __call__(self, config: Any, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """What a launcher calls for each job.

    Attributes:
        entry: name of the entry point's root configuration.
        work: of the entry point.
        isolated, quiet: for ``work``.
        sweep: process of the sweep; for a job that runs in it, a request to end is one to end the sweep.
        ending: a file that appears when the sweep is asked to end; jobs elsewhere on this machine look for it.
    """

    entry: str
    work: JobWork
    isolated: bool
    quiet: bool
    sweep: Process
    ending: Path

    def __call__(self, cfg: DictConfig) -> None:
        secure()  # a launcher's process is not begun by Esper
        run_dir = Path(HydraConfig.get().runtime.output_dir)
        folder, schema = RunFolder(run_dir), ENTRIES[self.entry].schema
        try:
            with refused(schema):
                config = load(cfg, schema)
        except UsageError as error:  # what was fine where the sweep was planned may not be where the job runs
            _report(folder, error)
            return
        # Requeued when all was done, or since the start of this sweep another one has come to it.
        if folder.condition() in (RunCondition.FINISHED, RunCondition.RUNNING) or self.ending.exists():
            return
        if isinstance(config, Config):
            config = replace(config, resume=AUTO)
        try:
            with requeued_on_request(), _ended_with_the_sweep(self.sweep, self.ending):
                self.work(config, run_dir, isolated=self.isolated, quiet=self.quiet)
        except Preempted:
            if self.sweep == this_process():
                raise
        # One job must not end the others, whatever it failed of; the traceback stays with the run.
        except Exception as error:
            _report(folder, error)


def _report(folder: RunFolder, error: Exception) -> None:
    """Mark the run as failed, unless it is another process's, or its ranks have left a better account of it."""
    ours = folder.condition() not in (RunCondition.RUNNING, RunCondition.FINISHED)
    told = isinstance(error, RunError) and folder.state is RunState.FAILED
    if ours and not told:
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.status(RunState.FAILED, traceback=traceback.format_exc())
    shown = str(error) if isinstance(error, UsageError | RunError | RunFolderError) else traceback.format_exc()
    say(f"error: {folder.path.name}: {shown}", stderr=True)


@contextmanager
def _ended_with_the_sweep(sweep: Process, ending: Path) -> Iterator[None]:
    """While entered, what asks the sweep to end asks this process too, once; in the sweep's own it needs no help."""
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
    """In a job of submitit's, leave a checkpoint and go back to the queue when asked to, as before a time limit.

    The job that is started again is the same: it finds the run in its folder and goes on with it.
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
                    # Slurm ends what goes back to the queue, with signals to this process and to scontrol.
                    for number in (*SIGNALS, PREEMPTING):
                        signal.signal(number, signal.SIG_IGN)
                    # However long a busy controller takes: at worst Slurm ends this job at its limit.
                    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
                _leave(stopped.code)
            if asked:
                _leave(LOCAL_REQUEUE)
            raise


def _leave(code: int) -> NoReturn:
    """End this process without a result, by which submitit would take the job for done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
