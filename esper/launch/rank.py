"""Process of one rank, started by :mod:`esper.launch.spawn`, which sends its instructions over standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

from esper.launch.begin import start
from esper.runtime import waiting
from esper.runtime.preemption import Preempted

INTERRUPTED = 130


def main() -> None:
    """Run as one rank; write a record of a failure to the place given in the instructions."""
    # Imported here, so that the process handles signals before slow imports.
    from esper.config import from_yaml
    from esper.launch.entries import ENTRIES
    from esper.launch.spawn import PEER_LOST, run_rank
    from esper.runtime.placement import PeerLost, Placement

    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a scheduler sends it to all; the launching process handles it
    order = json.loads(sys.stdin.readline())
    waiting.begin(order["waited"])
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    placement = Placement(
        rank=order["rank"],
        size=order["size"],
        local_rank=order["rank"],
        local_size=order["size"],
        rendezvous=order["rendezvous"],
    )
    entry = ENTRIES[order["entry"]]
    try:
        run_rank(entry, from_yaml(order["config"], entry.schema), Path(order["run_dir"]), placement)
    except KeyboardInterrupt:
        _leave(INTERRUPTED)
    except Preempted as stopped:
        _leave(stopped.code)
    except BaseException as error:
        _record(Path(order["failure"]), error)
        _leave(PEER_LOST if isinstance(error, PeerLost) else 1)


def _record(path: Path, error: BaseException) -> None:
    from esper.config import UsageError
    from esper.config.errors import RunError
    from esper.runtime.files import write_atomic
    from esper.runtime.run_folder import RunFolderError
    from esper.runtime.user_code import in_one_line

    lines = [line for line in str(error).splitlines() if line.strip()]  # CUDA's messages end with advice
    tells = isinstance(error, UsageError | RunError | RunFolderError | RuntimeError | ValueError) and lines
    record: dict[str, Any] = {
        "message": lines[0].strip() if tells else in_one_line(error),
        "refused": type(error).__name__ if isinstance(error, UsageError | RunFolderError) else None,
        "explained": isinstance(error, RunError),
        "traceback": traceback.format_exc(),
    }
    write_atomic(path, json.dumps(record))


def _end_with_the_launcher() -> None:
    """End this process when standard input closes, that is, when the process that started it has ended or was
    killed.
    """
    sys.stdin.read()
    _leave(INTERRUPTED)


def _leave(code: int) -> NoReturn:
    """End at once: an orderly exit would wait for other ranks, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    start("esper.launch.rank")
