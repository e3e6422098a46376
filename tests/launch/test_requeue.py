"""Going back to Slurm's queue: whatever signals Slurm sends meanwhile, the job ends without a result."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from processes import run

from tests.tiers import slowly

SCONTROL = """\
#!{python}
import os, signal, sys, time
os.kill(os.getppid(), {number})
os.kill(os.getpid(), {number})
time.sleep(0.5)
with open({log!r}, "w") as file:
    file.write(" ".join(sys.argv[1:]))
"""

JOB = """\
import os, signal
from esper.launch.sweep_task import requeued_on_request
from esper.runtime.preemption import StopSignals

try:
    with requeued_on_request(), StopSignals() as stop:
        with stop.deferred():
            os.kill(os.getpid(), signal.SIGUSR2)
finally:
    print("a result", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, slowly(signal.SIGINT), slowly(signal.SIGUSR2)])
def test_signals_while_a_job_goes_back_to_the_queue_do_not_make_it_look_done(tmp_path: Path, number: int) -> None:
    log = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(python=sys.executable, number=int(number), log=str(log)))
    scontrol.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "7",
    }
    done = run([sys.executable, "-c", JOB], env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
    assert log.read_text() == "requeue 7"
