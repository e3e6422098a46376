"""An interpreter that has imported everything, and becomes a new process for each command that it is given.

A process starts with the streams, environment, folder, limits and signals of the command, and ends as any process of
Python does: by an exit code, a traceback, a signal; threads, ``atexit`` and the last flush included. It takes tenths of
a second where ``python -m esper.train`` takes several. What it shares with its siblings are modules that were imported.

``python -m tests.warm.interpreter <folder>`` prints ``ready`` and serves until its standard input ends.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRELOADED = (
    "esper.training.run",
    "esper.launch.spawn",
    "esper.evaluation.run",
    "esper.evaluation.results",
    "esper.report.cli",
    "esper.watch.cli",
    "esper.launch.cli",
    "esper.views.choices_plot",
    "esper.views.frontier_plot",
    "esper.views.timeline_plot",
    "scipy.special",
    "torch.profiler",
    "torch.utils.data",
)
MOST_DESCRIPTORS = 253
"""Largest number of descriptors in one message."""

REREAD = ("matplotlib", "mpl_toolkits", "esper")
"""Packages that are imported anew where the environment has a word for them."""


class Interpreter:
    """Forks, and tells each command when its process has ended.

    Args:
        folder: of the socket, and of the file of each command that names its process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._commands: dict[int, socket.socket] = {}
        self._handles: dict[int, int] = {}

    def serve(self) -> Mapping[str, Any] | None:
        """Serve until standard input ends: ``None``, or in a new process what it is to do."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for process in self._commands:
                        _kill(process)
                    return None
                if key.fileobj is self._listener:
                    order = self._begin(self._listener.accept()[0])
                    if order is not None:
                        return order
                elif isinstance(key.fileobj, socket.socket):  # the command is gone, and its process goes too
                    self._selector.unregister(key.fileobj)
                    _kill(key.data)
                else:
                    self._end(key.data)

    def _begin(self, command: socket.socket) -> Mapping[str, Any] | None:
        message, received, _, _ = socket.recv_fds(command, 1 << 20, MOST_DESCRIPTORS)
        order = json.loads(message)
        process = os.fork()
        if process == 0:
            command.close()
            self._close()
            _take(order["descriptors"], received)
            return order
        for number in received:
            os.close(number)
        (self._folder / "processes" / str(order["pid"])).write_text(str(process))
        command.send(str(process).encode())
        self._commands[process] = command
        self._selector.register(command, selectors.EVENT_READ, process)
        self._handles[process] = os.pidfd_open(process)
        self._selector.register(self._handles[process], selectors.EVENT_READ, process)
        return None

    def _end(self, process: int) -> None:
        _, status = os.waitpid(process, 0)
        handle = self._handles.pop(process)
        self._selector.unregister(handle)
        os.close(handle)
        with self._commands.pop(process) as command:
            if command in self._selector.get_map():
                self._selector.unregister(command)
                command.send(str(status).encode())

    def _close(self) -> None:
        """Let go of everything, in a new process."""
        self._selector.close()
        self._listener.close()
        for command in self._commands.values():
            command.close()
        for handle in self._handles.values():
            os.close(handle)


def _kill(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(process, signal.SIGKILL)


def _take(numbers: list[int], received: list[int]) -> None:
    """Make what was received what the command has under these numbers: standard streams, and what it inherited."""
    os.setpgid(0, 0)
    base = 1 + max([2, *numbers, *received])
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, base) for number in received]
    for number in (0, 1, 2, *received):
        os.close(number)
    for number, kept in zip(numbers, high, strict=True):
        os.dup2(kept, number)
        os.close(kept)


def become(order: Mapping[str, Any], folder: Path) -> None:
    """Be the process that ``python -m <module> <words>`` would start with."""
    os.chdir(order["folder"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for name, stream in enumerate(_streams(order["descriptors"])):
        setattr(sys, ("stdin", "stdout", "stderr")[name], stream)
        setattr(sys, ("__stdin__", "__stdout__", "__stderr__")[name], stream)
    sys.executable = str(folder / "bin" / "python")
    sys.argv = [order["module"], *order["words"]]
    sys.path[:] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    tempfile.tempdir = None
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if "MPLBACKEND" in os.environ:
        for name in [name for name in sys.modules if name.partition(".")[0] in REREAD]:
            del sys.modules[name]
    for name, limit in order["limits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limit))
    importlib.invalidate_caches()


def _streams(opened: list[int]) -> list[io.TextIOWrapper | None]:
    """Standard streams as Python makes them, in the encoding that the environment asks for."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    made: list[io.TextIOWrapper | None] = []
    for number in (0, 1, 2):
        if number not in opened:
            made.append(None)
            continue
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        made.append(
            io.TextIOWrapper(
                io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw),
                encoding=encoding or "utf-8",
                errors="backslashreplace" if number == 2 else errors or "strict",
                line_buffering=number == 2 or raw.isatty(),
            )
        )
    return made


_ends_with: list[int] = []


def _leave() -> None:
    """End at once, the last thing at exit: taking apart all that was imported takes longer than most commands do."""
    if _ends_with:
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            return  # Python does it once more, and complains in its own words
        os._exit(_ends_with[0])


def _run(module: str) -> None:
    """Run a module as Python does that was told ``-m``."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        _ends_with.append(0)
    except SystemExit as end:
        _ends_with.append(end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception:
        _ends_with.append(1)
        raise


if __name__ == "__main__":
    atexit.register(_leave)  # what is registered first is called last
    os.environ["OMP_NUM_THREADS"] = "1"
    for preloaded in PRELOADED:
        importlib.import_module(preloaded)
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("esper.config").compose("+preset=smoke")  # finds Hydra's plugins
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "only one thread can fork"
    gc.collect()
    gc.freeze()  # else each process would look through all that was imported before it ends, for a second
    place = Path(sys.argv[1])
    server = Interpreter(place)
    print("ready", flush=True)
    request = server.serve()
    if request is not None:
        become(request, place)
        # At the top: what this raises ends the process as it would any other.
        _run(request["module"])
