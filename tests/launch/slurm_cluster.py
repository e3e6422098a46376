"""A Slurm cluster of one node, this machine, on the loopback: munged, slurmctld and slurmd with files of their own."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from processes import LIMIT, run, started, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")

CONFIG = """\
ClusterName=esper
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobRequeue=1
KillWait=10
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """The reason why no cluster can be started here, ``None`` if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=path()) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd starts jobs as root only"
    return None


def path() -> str:
    """Return the search path for programs, including those of root for daemons."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """A running cluster.

    Attributes:
        environment: that clients need.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = os.environ | {"SLURM_CONF": str(root / "slurm.conf"), "PATH": path()}

    def tell(self, *command: str) -> str:
        """Run a client, and return what it prints."""
        return run(command, env=self.environment, check=True).stdout

    def is_up(self) -> bool:
        """Return whether the node accepts jobs."""
        done = run(["sinfo", "--noheader", "--format=%T"], env=self.environment)
        return done.stdout.strip() == "idle"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def cluster(root: Path) -> Iterator[Cluster]:
    """Start a cluster with its files in ``root``, and end it."""
    for name in ("state", "spool"):
        (root / name).mkdir()
    key = root / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = platform.node().split(".")[0]
    (root / "slurm.conf").write_text(CONFIG.format(root=root, host=host, ports=_free_ports(2), user="root"))
    found = Cluster(root)
    munged = [
        "munged", "--foreground", "--force", f"--socket={root}/munge.socket", f"--key-file={key}",
        f"--pid-file={root}/munged.pid", f"--log-file={root}/munged.log", f"--seed-file={root}/munged.seed",
    ]  # fmt: skip
    with ExitStack() as daemons, (root / "daemons.log").open("wb") as log:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            daemon = daemons.enter_context(started(command, env=found.environment, stdout=log, stderr=log))
            daemons.callback(_stop, daemon)  # in turn, munged last: the others speak through it
            time.sleep(1.0)
        try:
            wait_for(found.is_up)
        except AssertionError:
            raise AssertionError((root / "daemons.log").read_text()[-4000:]) from None
        yield found


def _stop(daemon: subprocess.Popen[str]) -> None:
    daemon.terminate()
    daemon.wait(LIMIT)
