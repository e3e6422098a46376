"""Peak memory of training hosts, each measured in a separate process.

``python -m benchmarks.peak digits matmul "no modules" 16 1`` prints one number.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.bare import BareTraining, bare_network
from benchmarks.epochs import Epoch, Growing, each, germinate, stage_of
from benchmarks.records import Record, bytes_held
from benchmarks.scale import FULL, Scale
from benchmarks.settings import Setting, colour, digits
from esper.runtime.devices import keep_freed_memory

SECTION = "peak"
BARE = "bare host"
NO_MODULES, MODULES = "no modules", "three conv_light blended"
STATUS = Path("/proc/self/status")
SLOTS = {NO_MODULES: (), MODULES: (0, 1, 2)}


def run(scale: Scale) -> list[Record]:
    """Measure the bytes that one epoch adds to a process: hosts, data and kernel buffers included."""
    found = []
    for kind, mapping in (("digits", "matmul"), ("colour", "loop")):
        for num_envs in scale.peak:
            floor = _measure(kind, BARE, NO_MODULES, num_envs)
            rows = [(NO_MODULES, BARE, floor)]
            rows += [(growth, f"Esper, {mapping}", _measure(kind, mapping, growth, num_envs)) for growth in SLOTS]
            found += [
                bytes_held(SECTION, f"{kind}: {growth}", num_envs, implementation, held, floor)
                for growth, implementation, held in rows
            ]
    return found


def _measure(kind: str, implementation: str, growth: str, num_envs: int) -> int:
    command = [
        sys.executable,
        "-m",
        "benchmarks.peak",
        kind,
        implementation,
        growth,
        str(num_envs),
        str(torch.get_num_threads()),
    ]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _epoch(setting: Setting, implementation: str, growth: str, num_envs: int) -> Epoch:
    if implementation == BARE:
        return each([BareTraining(bare_network(setting.host), setting.loader) for _ in range(num_envs)])
    population = setting.population(num_envs, implementation)
    germinate(population, SLOTS[growth])
    growing = Growing(setting.loader, population, setting.instances(num_envs))
    stage = stage_of(population, 1.0)
    return lambda: growing.epoch(stage)


def _peak() -> int:
    """Return the peak memory of this process, since :func:`_forget_peak` on systems with ``/proc``."""
    if STATUS.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forget_peak() -> None:
    """Reset the peak to the memory that the process holds now, because imports and data briefly take more than they
    keep.

    Return freed memory to the system first; otherwise an epoch that fits into it would seem to need none.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


def main(kind: str, implementation: str, growth: str, num_envs: str, num_threads: str) -> None:
    """Print the rise of the peak in bytes while hosts are built and trained for one epoch."""
    torch.set_num_threads(int(num_threads))
    keep_freed_memory()  # as a run does
    setting = digits(FULL.preset) if kind == "digits" else colour(FULL.image_size, FULL.image_batch)
    _forget_peak()
    before = _peak()
    _epoch(setting, implementation, growth, int(num_envs))()
    print(_peak() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
