"""Processor time before there is something to read: help, a run's first line, its first iteration, alone and on two
ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.records import Record
from benchmarks.scale import Scale

SECTION = "start"
TRAIN = ("-m", "esper.train", "+preset=smoke", "env.mapping=matmul", "seed=0")
FLOOR = "import torch"

CONTENDERS: dict[str, tuple[tuple[str, ...], str | None]] = {
    FLOOR: (("-c", "import torch"), None),
    "--help": (("-m", "esper.train", "--help"), None),
    "first line": (TRAIN, "run"),
    "first iteration": (TRAIN, "iter "),
    "first iteration, two ranks": ((*TRAIN, "devices=[cpu,cpu]"), "iter "),
}
"""Arguments of Python, and how the line begins that ends the measurement; ``None`` for the end of the process."""


def run(scale: Scale) -> list[Record]:
    """Measure milliseconds of processor time, of all processes together."""
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(scale.start_rounds):
        for name in list(CONTENDERS)[:: 1 if number % 2 else -1]:
            times[name].append(1e3 * _seconds(*CONTENDERS[name]))
    return [
        Record(
            section=SECTION,
            workload="smoke, processor time",
            hosts=4,
            implementation=name,
            median=median(own),
            p95=float(np.quantile(own, 0.95)),
            ratio=median(np.divide(own, times[FLOOR]).tolist()),
            unit="ms",
            rounds=len(own),
        )
        for name, own in times.items()
    ]


def _seconds(words: tuple[str, ...], last: str | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *words, *([] if last is None else [f"hydra.run.dir={folder}/run"])]
        before = sum(os.times()[2:4])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if last is not None and line.startswith(last):
                    used = _of_tree(child.pid)
                    child.kill()  # its ranks end with it
                    return used
        if last is not None or child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with code {child.returncode} before {last!r}")
        return sum(os.times()[2:4]) - before


def _of_tree(process: int) -> float:
    """Return the processor time of a process and of those that it has started, as Linux counts it."""
    stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK") + sum(_of_tree(int(child)) for child in children)
