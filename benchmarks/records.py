"""Records of benchmark results and of the machine that produced them."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from esper.runtime.provenance import environment_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of the results.

    Attributes:
        section: section of the benchmarks.
        workload: description of the work.
        hosts: number of simultaneous environments.
        implementation: the contender, such as "bare host".
        median, p95: statistics over rounds, in ``unit``.
        ratio: time relative to the section's reference; ``None`` without one.
        unit: unit of median and p95.
        rounds: number of measurements.
        ratio_grown: time relative to plain PyTorch with the same modules; ``None`` without modules.
        samples: training samples in the time given, if that is an epoch of one host; otherwise ``None``.
    """

    section: str
    workload: str
    hosts: int
    implementation: str
    median: float
    p95: float
    ratio: float | None
    unit: str
    rounds: int
    ratio_grown: float | None = None
    samples: int | None = None


def bytes_held(section: str, workload: str, hosts: int, implementation: str, held: int, compared: int) -> Record:
    """Record a single memory measurement; the ratio is to ``compared`` bytes unless that is 0."""
    return Record(
        section=section,
        workload=workload,
        hosts=hosts,
        implementation=implementation,
        median=held,
        p95=held,
        ratio=held / compared if compared else None,
        unit="bytes",
        rounds=1,
    )


def machine(clock: str) -> dict[str, Any]:
    """Describe the machine, time, commit and clock of the measurements; ``load`` is other work at the start, in busy
    cores.
    """
    info = environment_info()
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "clock": clock,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": info["git_sha"],
        "changed": info["git_dirty"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": round(os.getloadavg()[0], 1),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
