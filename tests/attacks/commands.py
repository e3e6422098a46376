"""The commands that attacks are made of, on a ``PATH`` of their own, around one warm interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from processes import hear_interrupts, run

from tests.attacks.attack import OWN, TINY, Attack, Outcome, below
from tests.warm import ROOT, WarmPython

TOOLS = ("at", "terminal")
RUNS = {
    "done": "esper.train $tiny name=done",
    "stopped": "at 'iter 1' TERM -- esper.train $tiny name=stopped trainer.num_iterations=3",
    "longer": "at 'iter 2' TERM -- esper.train $tiny name=longer trainer.num_iterations=3",
    "judged": "esper.evaluate checkpoint=outputs/done 'controllers=[learned,never]' num_hosts=2 name=judged",
}
"""Existing runs that attacks may find in ``outputs/``, with the commands that make them."""


def commands(warm: WarmPython, scratch: Path) -> dict[str, str]:
    """The environment in which commands are found and runs that attacks may be given."""
    tools = scratch / "bin"
    tools.mkdir()
    text = f"#!{os.path.realpath(sys.executable)} -IS\n{(Path(__file__).parent / 'tools.py').read_text()}"
    for name in TOOLS:
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{warm.binaries}:{tools}:{os.environ['PATH']}",
        "HOME": str(scratch),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
        "ESPER_CACHE_DIR": str(scratch / "cache"),
        "tiny": TINY,
        "own": OWN,
    }
    for name, bash in RUNS.items():
        done = _bash(bash, environment, scratch)
        assert (scratch / "outputs" / name / "status.json").exists(), f"{bash}\n{done.stdout}\n{done.stderr}"
    return environment


def carry_out(attack: Attack, environment: dict[str, str], folder: Path) -> Outcome:
    """Carry out an attack in its own folder; all its processes have ended afterwards."""
    for name in attack.given:
        shutil.copytree(Path(environment["HOME"]) / "outputs" / name, folder / "outputs" / name)
    for name, content in attack.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = below(folder)
    done = _bash(attack.bash, environment, folder)
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr, folder=folder, before=before)


def _bash(command: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    options = {"stdin": subprocess.DEVNULL, "preexec_fn": hear_interrupts, "errors": "replace"}
    return run(["bash", "-c", command], env=environment, cwd=folder, **options)
