"""Runs of a study: one that was stopped goes on when the study is made again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest

from experiments.jobs import Job, make

WORDS = ("+preset=smoke", "env.mapping=loop", "trainer.num_iterations=6", "evaluation.controllers=[never]")


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "run", WORDS)
    metrics = job.folder / "metrics.jsonl"
    running: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def started(*args: object, **options: object) -> subprocess.Popen[bytes]:
        running.append(start(*args, **options))  # type: ignore[call-overload]
        return running[-1]

    def stop() -> None:
        while not (metrics.exists() and metrics.read_text().count("\n")):
            time.sleep(0.01)
        running[0].send_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", started)
    stopping = Thread(target=stop, daemon=True)
    stopping.start()
    with pytest.raises(subprocess.CalledProcessError, match=r"143|SIGTERM"):
        make([job])
    assert not job.is_done
    begun = metrics.read_text().splitlines()
    make([job])
    assert job.is_done
    ended = metrics.read_text().splitlines()
    assert ended[: len(begun)] == begun, "what it had learned is not made again"
    assert len(ended) == 6
