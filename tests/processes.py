"""Child processes of tests: enough time on a busy machine, and none left over, however a test ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

LIMIT = 600.0
"""Seconds for anything that only has to end or happen, so many that only a hanging process reaches them."""

POLL_SECONDS = 0.02
MARK = "ESPER_TEST_CHILD"
"""Environment variable that identifies everything a child has started, in any session."""


@contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A child process with a session of its own; it and all that it has started are killed at the end of the block.

    Args:
        command: to run.
        options: of ``subprocess.Popen``.
    """
    mark = uuid.uuid4().hex
    environment = dict(options.pop("env", None) or os.environ) | {MARK: mark}
    process = subprocess.Popen(command, text=True, start_new_session=True, env=environment, **options)
    try:
        yield process
    finally:
        _end(process, mark)


def run(command: Sequence[str | Path], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a child to its end, as ``subprocess.run`` does, and keep what it prints.

    Raises:
        CalledProcessError: it failed, if ``check``.
        TimeoutExpired: it hangs.
    """
    with started(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options) as process:
        output, errors = process.communicate(timeout=LIMIT)
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def wait_for(what: Callable[[], Any], *needed: subprocess.Popen[str]) -> Any:
    """Wait for a value and return it; raise ``AssertionError`` if it never comes, or a required process has ended."""
    deadline = time.monotonic() + LIMIT
    while not (found := what()):
        for process in needed:
            assert process.poll() is None or what(), f"{process.args} has ended with code {process.returncode}"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(POLL_SECONDS)
    return found


@contextmanager
def together(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Start processes of ``multiprocessing``; those that have not ended are killed at the end of the block."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def code_of(process: BaseProcess) -> int | None:
    """Exit code of a started process of ``multiprocessing``, once it has ended; one that hangs is killed."""
    process.join(LIMIT)
    process.kill()
    process.join()
    return process.exitcode


def run_to_its_end(process: BaseProcess) -> int | None:
    """Exit code of a process of ``multiprocessing`` that is started and ended here."""
    with together([process]):
        return code_of(process)


def hear_interrupts() -> None:
    """For ``preexec_fn``: a shell's background jobs ignore interrupts, and under ``nohup`` the end of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _end(process: subprocess.Popen[str], mark: str) -> None:
    while left := _marked(mark):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(POLL_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # where processes are not listed in /proc
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _marked(mark: str) -> list[int]:
    """Processes that have the mark in their environment and have not ended."""
    variable, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            if variable in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
