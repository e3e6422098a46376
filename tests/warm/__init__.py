"""Processes of Esper's that start in tenths of a second: forked from an interpreter that has imported everything.

For tests that are about what a process does, not about how Python begins. ``warm_python`` takes the place of
``sys.executable``; runs started by it start their own ranks and jobs the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import LIMIT, started, wait_for

ROOT = Path(__file__).parents[2]
COMMANDS = ("esper.train", "esper.evaluate", "esper.report", "esper.watch", "esper.dashboard")

PROGRAM = """\
#!{bare} -IS
import sys
sys.path.insert(0, {folder!r})
from program import main
main({scratch!r}, {python!r})
"""


@dataclass(frozen=True, slots=True)
class WarmPython:
    """An interpreter that waits for commands.

    Attributes:
        executable: takes the place of ``sys.executable``: ``-m esper.train …`` is handed over, as is what else needs
            PyTorch; anything else is run by a new interpreter.
        scratch: where the interpreter keeps its socket and says which process does the work of which.
    """

    executable: str
    scratch: Path | None = None

    @property
    def binaries(self) -> Path:
        """Folder of commands: ``python`` and ``esper.train`` to ``esper.dashboard``."""
        return Path(self.executable).parent

    def process_of(self, pid: int) -> int:
        """The process that does the work of one that was started: what is sent to one is passed on to the other."""
        if self.scratch is None:
            return pid
        path = self.scratch / "processes" / str(pid)
        return int(wait_for(lambda: path.exists() and path.read_text()))


@contextmanager
def warm(environment: Mapping[str, str] = os.environ) -> Iterator[WarmPython]:
    """An interpreter that was started in an environment; processes get that of whoever starts them."""
    # The socket's path must be short, and pytest's folders may not be.
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        scratch = Path(folder)
        found = WarmPython(str(scratch / "bin" / "python"), scratch)
        for name in ("bin", "processes"):
            (scratch / name).mkdir()
        text = PROGRAM.format(
            bare=os.path.realpath(sys.executable),
            python=sys.executable,
            folder=str(Path(__file__).parent),
            scratch=folder,
        )
        for name in ("python", *COMMANDS):
            (found.binaries / name).write_text(text)
            (found.binaries / name).chmod(0o755)
        path = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
        order = [sys.executable, "-m", "tests.warm.interpreter", folder]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": dict(environment) | {"PYTHONPATH": path}}
        with started(order, **options) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", "the interpreter does not start"
            yield found
            server.stdin.close()
            server.wait(LIMIT)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """One for all tests of a session; a cold one where processes cannot be handed over."""
    if sys.platform != "linux":
        yield WarmPython(sys.executable)
        return
    with warm() as found:
        yield found


@pytest.fixture(scope="module")
def warm_children(warm_python: WarmPython) -> Iterator[None]:
    """Make the processes that this one starts by ``sys.executable`` warm too, for the tests of a file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", warm_python.executable)
        yield
