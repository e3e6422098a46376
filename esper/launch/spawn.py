"""Starting a run on its devices: in this process for one, as one process per device for several.

torchrun and ``srun`` start the processes themselves; then each of them only joins the others. Otherwise this process
starts them, watches them, and ends the run when one of them dies: nobody waits for a rank that is gone.
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
from esper.runtime.devices import resolve_devices
from esper.runtime.preemption import SIGNALS, Preempted, StopSignals
from esper.runtime.ranks import ALONE, Placement, connected, outside_placement
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.terminal import say

POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0
"""Time that ranks get to end by themselves once one of them has; then they are terminated, and later killed."""

CAUSE_SECONDS = 60.0
"""Longest wait for the rank that was the cause while those that have ended only miss another one: on a busy machine the
traceback of a rank takes longer to write than the others take to notice that it is gone."""

STOPPED = {Preempted(number).code: int(number) for number in SIGNALS}
"""Exit codes of ranks that were asked to end and did, and the signals."""

OUTPUT_LOG = "output.log"
"""Where quiet ranks print, in the run folder."""

PEER_LOST = 75
"""Exit code of a rank that ended only because another one had."""


def launch(entry: Entry, config: Any, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None:
    """Do the work of an entry point on the configured devices.

    Args:
        entry, config, run_dir: what, how and where.
        isolated: even a single rank gets a process of its own, so that its death is not that of this one.
        quiet: ranks in processes of their own print to ``output.log`` in the run folder.

    Raises:
        RunError: a rank died; the message says which and why, and its traceback is in ``status.json``.
        Preempted: the run was asked to end.
    """
    placement = outside_placement()
    if placement is not None:
        run_rank(entry, config, run_dir, placement)
        return
    devices = resolve_devices(config.devices)
    if isolated or len(devices) > 1:
        log = run_dir / OUTPUT_LOG if quiet else None
        _run_ranks(entry, config, run_dir, [str(device) for device in devices], log)
        return
    entry.work()(config, run_dir, ALONE)


def run_rank(entry: Entry, config: Any, run_dir: Path, placement: Placement) -> None:
    """Take part in a run as one of its ranks; the run folder is the first rank's."""
    work = entry.work()
    if placement.size == 1:
        work(config, run_dir, ALONE)
        return
    with connected(placement) as ranks:
        work(config, ranks.broadcast(run_dir), ranks)


def _run_ranks(entry: Entry, config: Any, run_dir: Path, devices: Sequence[str], log: Path | None = None) -> None:
    folder = RunFolder(run_dir)
    with tempfile.TemporaryDirectory(prefix="esper-ranks-") as scratch, StopSignals() as signals:
        children: list[subprocess.Popen[str]] = []
        try:
            with signals.deferred():
                children.extend(
                    _start(entry, config, run_dir, Path(scratch), rank, len(devices), log)
                    for rank in range(len(devices))
                )
                codes = _watch(children, signals)
                number = _stopped_by(codes, signals.requested)
                if number:
                    raise Preempted(number)
        except BaseException as error:
            # Ranks are told again what they have been told before, so that they report the same.
            _end(children, signal.Signals(error.number) if isinstance(error, Preempted) else signal.SIGTERM)
            if folder.state is RunState.RUNNING or (folder.state is RunState.FAILED and isinstance(error, Preempted)):
                folder.status(RunState.PREEMPTED)
            raise
        if any(codes):
            _end(children, signal.SIGTERM)
            _report(folder, Path(scratch), codes, devices)


def _start(
    entry: Entry, config: Any, run_dir: Path, scratch: Path, rank: int, size: int, log: Path | None
) -> subprocess.Popen[str]:
    order = {
        "entry": entry.config_name,
        "config": to_yaml(config),
        "run_dir": str(run_dir.absolute()),
        "rank": rank,
        "size": size,
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
    """Wait until all ranks are done, or one has failed and the others had time to end by themselves: exit codes.

    A request to end is passed on once; ranks that heed it get all the time that they need to leave a checkpoint.
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
    """The signal for which the ranks have ended, 0 if they have not.

    Args:
        codes: of the ranks.
        requested: the signal that was passed on, 0 for none. Of ranks that heed it at once some only see that others
            have left, and some may be done.
    """
    asked = [STOPPED[code] for code in codes if code in STOPPED]
    rest = {code for code in codes if code not in STOPPED}
    return (requested or max(asked)) if asked and rest <= ({0, PEER_LOST} if requested else set()) else 0


def _causes(codes: Sequence[int | None]) -> list[int]:
    """Ranks that have failed by themselves."""
    return [rank for rank, code in enumerate(codes) if code not in (None, 0, PEER_LOST)]


def _wait(
    children: Sequence[subprocess.Popen[str]],
    seconds: float = GRACE_SECONDS,
    enough: Callable[[Sequence[int | None]], object] = lambda codes: False,
) -> None:
    """Until all ranks have ended, or enough is known from their exit codes, but not for longer than so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if None not in codes or enough(codes):
            return
        time.sleep(POLL_SECONDS)


def _end(children: Sequence[subprocess.Popen[str]], first: signal.Signals) -> None:
    """Make the ranks that are left end; returns when all have."""
    for kind in (first, signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if child.poll() is None:
                child.send_signal(kind)
        _wait(children)


def _report(folder: RunFolder, scratch: Path, codes: Sequence[int | None], devices: Sequence[str]) -> NoReturn:
    """Mark the run as failed by the rank that was the first cause, and say so."""
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
    kept = f"; {shell_word('resume', folder.path)} goes on from {checkpoint}" if checkpoint.exists() else ""
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
