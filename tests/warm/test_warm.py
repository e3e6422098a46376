"""A warm process begins and ends as a cold one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import LIMIT, run, started, wait_for
from tests.warm import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are handed over by way of Linux's pidfd"),
]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_what_it_prints_and_how_it_ends_is_what_a_cold_one_does(warm_python: WarmPython, tmp_path: Path) -> None:
    for words in (
        ["-m", "esper.train", "+preset=nope"],
        ["-m", "esper.train", "--help"],
        ["-c", "raise SystemExit(3)"],
    ):
        warm, cold = (run([python, *words], cwd=tmp_path) for python in (warm_python.executable, sys.executable))
        assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)


@pytest.mark.parametrize("of_its_process", [False, True])
def test_who_kills_one_of_the_two_processes_kills_both(warm_python: WarmPython, of_its_process: bool) -> None:
    waits = [warm_python.executable, "-m", "esper.launch.rank"]
    with started(waits, stdin=subprocess.PIPE) as child:
        process = warm_python.process_of(child.pid)
        assert alive(process)
        os.kill(process if of_its_process else child.pid, signal.SIGKILL)
        assert child.wait(LIMIT) == -signal.SIGKILL
        wait_for(lambda: not alive(process))


def test_a_request_to_end_is_passed_on(warm_python: WarmPython) -> None:
    with started([warm_python.executable, "-m", "esper.launch.rank"], stdin=subprocess.PIPE) as child:
        process = warm_python.process_of(child.pid)
        child.terminate()
        assert child.wait(LIMIT) in (-signal.SIGTERM, 128 + signal.SIGTERM), "before or after it listens"
        wait_for(lambda: not alive(process))
