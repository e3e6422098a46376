"""Runs of a study: an interrupted run is resumed when the study is repeated."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest

from experiments.jobs import Job, make

NUM_ITERATIONS = 12
WORDS = (
    "+preset=smoke",
    "env.mapping=loop",
    f"trainer.num_iterations={NUM_ITERATIONS}",
    "evaluation.controllers=[never]",
)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(warm_children: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "run", WORDS)
    metrics = job.folder / "metrics.jsonl"
    start = subprocess.Popen

    def stop(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)

    def started(*args: object, **options: object) -> subprocess.Popen[bytes]:
        process = start(*args, **options)  # type: ignore[call-overload]
        Thread(target=stop, args=(process,), daemon=True).start()
        return process  # type: ignore[no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", started)
        with pytest.raises(subprocess.CalledProcessError) as stopped:
            make([job])
    assert stopped.value.returncode == 128 + signal.SIGTERM
    assert not job.is_done
    begun = metrics.read_text().splitlines()
    assert 0 < len(begun) < NUM_ITERATIONS
    make([job])
    assert job.is_done
    ended = metrics.read_text().splitlines()
    assert ended[: len(begun)] == begun, "what it had learned is not made again"
    assert len(ended) == NUM_ITERATIONS
