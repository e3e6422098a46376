"""Start of a run on its devices: in this process for one, with one process per device for several.

torchrun and ``srun`` start the processes themselves, and each joins the others. Otherwise this process starts and
watches them, and ends the run when one of them dies, so that none waits for a lost rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from esper.config import UsageError, to_yaml
from esper.config.errors import RunError
from esper.config.words import shell_word
from esper.launch.entries import Entry
from esper.runtime.placement import Placement, outside_placement
from esper.runtime.preemption import SIGNALS, Preempted, StopSignals
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.terminal import say
from esper.runtime.waiting import waited

POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0
"""Seconds that ranks get to end by themselves after one has ended; then they are terminated, and later killed."""

CAUSE_SECONDS = 60.0
"""Longest wait in seconds for the rank that caused a failure, while others have only reported a lost peer: on a busy
machine a rank may write its traceback after the others notice its absence.
"""

STOPPED = {Preempted(number).code: int(number) for number in SIGNALS}
"""Signals by exit code, for ranks that were asked to stop and did."""

OUTPUT_LOG = "output.log"
"""File in the run folder for the output of quiet ranks."""

PEER_LOST = 75
"""Exit code of a rank that ended only because another one had."""


def launch(entry: Entry, config: Any, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None:
    """Run an entry point on the configured devices.

    Args:
        entry, config, run_dir: entry point, its configuration and its run folder, which is named by its absolute path
            from here on.
        isolated: run even a single rank in a separate process, so that its death does not end this one.
        quiet: let ranks in separate processes print to ``output.log`` in the run folder.

    Raises:
        RunError: a rank died; the message says which and why, and its traceback is in ``status.json``.
        Preempted: the run was asked to stop.
    """
    run_dir = run_dir.absolute()
    placement = outside_placement()
    if placement is not None:
        run_rank(entry, config, run_dir, placement)
        return
    from esper.runtime.devices import resolve_devices  # not above: help and errors of use do not wait for torch
    from esper.runtime.ranks import ALONE

    devices = resolve_devices(config.devices)
    if isolated or len(devices) > 1:
        log = run_dir / OUTPUT_LOG if quiet else None
        _run_ranks(entry, config, run_dir, [str(device) for device in devices], log)
        return
    entry.work()(config, run_dir, ALONE)


def run_rank(entry: Entry, config: Any, run_dir: Path, placement: Placement) -> None:
    """Run an entry point as one rank; only the first rank owns the run folder."""
    from esper.runtime.ranks import ALONE, connected

    work = entry.work()
    if placement.size == 1:
        work(config, run_dir, ALONE)
        return
    with connected(placement) as ranks:
        work(config, ranks.broadcast(run_dir), ranks)


def _run_ranks(entry: Entry, config: Any, run_dir: Path, devices: Sequence[str], log: Path | None = None) -> None:
    folder, before = RunFolder(run_dir), waited()
    with tempfile.TemporaryDirectory(prefix="esper-ranks-") as scratch, StopSignals() as signals:
        children: list[subprocess.Popen[str]] = []
        try:
            with signals.deferred():
                children.extend(
                    _start(entry, config, run_dir, Path(scratch), rank, len(devices), log, before)
                    for rank in range(len(devices))
                )
                codes = _watch(children, signals)
                number = _stopped_by(codes, signals.requested)
                if number:
                    raise Preempted(number)
        except BaseException as error:
            # A repeated signal is the same as the first, so that all ranks report the same one.
            _end(children, signal.Signals(error.number) if isinstance(error, Preempted) else signal.SIGTERM)
            if folder.state is RunState.RUNNING or (folder.state is RunState.FAILED and isinstance(error, Preempted)):
                folder.status(RunState.PREEMPTED)
            raise
        if any(codes):
            _end(children, signal.SIGTERM)
            _report(folder, Path(scratch), codes, devices)


def _start(
    entry: Entry, config: Any, run_dir: Path, scratch: Path, rank: int, size: int, log: Path | None, before: float
) -> subprocess.Popen[str]:
    order = {
        "entry": entry.config_name,
        "config": to_yaml(config),
        "run_dir": str(run_dir.absolute()),
        "rank": rank,
        "size": size,
        "waited": before,
        "rendezvous": f"file://{scratch}/rendezvous",
        "failure": str(_failure_file(scratch, rank)),
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if sys.platform == "linux":
        # All ranks are on this machine, whatever its name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with contextlib.nullcontext() if log is None else log.open("a", encoding="utf-8") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "esper.launch.rank"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
            env=environment,
            start_new_session=True,  # an interrupt from the keyboard reaches this process, which passes it on once
        )
    assert child.stdin is not None
    # The pipe stays open: when it breaks, the child knows that this process is gone.
    child.stdin.write(json.dumps(order) + "\n")
    child.stdin.flush()
    return child


def _failure_file(scratch: Path, rank: int) -> Path:
    return scratch / f"rank-{rank}.json"


def _watch(children: Sequence[subprocess.Popen[str]], signals: StopSignals) -> list[int | None]:
    """Wait until all ranks have ended, or one has failed and the others had time to end; return exit codes.

    A request to stop is passed on once; ranks that obey it get as much time as they need to write a checkpoint.
    """
    passed_on = False
    while True:
        if signals.requested and not passed_on:
            passed_on = True
            for child in children:
                if child.poll() is None:
                    child.send_signal(signals.requested)
        codes = [child.poll() for child in children]
        if all(code is not None and (code == 0 or code in STOPPED) for code in codes):
            return codes
        if any(code and code not in STOPPED for code in codes):
            _wait(children, CAUSE_SECONDS, _causes)
            _wait(children)
            return [child.poll() for child in children]
        time.sleep(POLL_SECONDS)


def _stopped_by(codes: Sequence[int | None], requested: int) -> int:
    """Return the signal that made the ranks stop, 0 if they did not stop for one.

    Args:
        codes: exit codes of the ranks.
        requested: the signal that was passed on, 0 for none. When ranks obey it, some may only notice that others have
            left, and some may have finished.
    """
    asked = [STOPPED[code] for code in codes if code in STOPPED]
    rest = {code for code in codes if code not in STOPPED}
    return (requested or max(asked)) if asked and rest <= ({0, PEER_LOST} if requested else set()) else 0


def _causes(codes: Sequence[int | None]) -> list[int]:
    """Return the ranks that failed by themselves."""
    return [rank for rank, code in enumerate(codes) if code not in (None, 0, PEER_LOST)]


def _wait(
    children: Sequence[subprocess.Popen[str]],
    seconds: float = GRACE_SECONDS,
    enough: Callable[[Sequence[int | None]], object] = lambda codes: False,
) -> None:
    """Wait until all ranks have ended or ``enough`` accepts their exit codes, at most a number of seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if None not in codes or enough(codes):
            return
        time.sleep(POLL_SECONDS)


def _end(children: Sequence[subprocess.Popen[str]], first: signal.Signals) -> None:
    """Terminate, then kill, the remaining ranks; return when all have ended."""
    for kind in (first, signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if child.poll() is None:
                child.send_signal(kind)
        _wait(children)


def _report(folder: RunFolder, scratch: Path, codes: Sequence[int | None], devices: Sequence[str]) -> NoReturn:
    """Mark the run as failed by the rank that was the first cause, and raise the error."""
    rank = (_causes(codes) or [codes.index(PEER_LOST)])[0]
    code = codes[rank]
    assert code is not None
    failure = _read_failure(_failure_file(scratch, rank))
    if failure.get("refused"):
        raise (UsageError if failure["refused"] == UsageError.__name__ else RunError)(failure["message"])
    what = f"failed ({failure['message']})" if failure else _how_it_ended(code)
    alone = len(devices) == 1
    message = f"the run on {devices[0]} {what}" if alone else f"rank {rank} on {devices[rank]} {what}"
    if folder.status_file.exists():
        folder.status(RunState.FAILED, rank=rank, traceback=failure.get("traceback", message))
    if failure.get("explained"):
        raise RunError(failure["message"] if alone else f"rank {rank} on {devices[rank]}: {failure['message']}")
    if failure:
        say(failure["traceback"], stderr=True)
    checkpoint = folder.last_checkpoint
    kept = f"; {shell_word('resume', folder.path)} resumes from {checkpoint}" if checkpoint.exists() else ""
    ended = "" if alone else "; the other ranks were ended"
    raise RunError(f"{message}{ended}{kept}")


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    how = f"was killed by {signal.Signals(-code).name}"
    return f"{how}, as the system does when memory is short" if -code == signal.SIGKILL else how


def _read_failure(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
