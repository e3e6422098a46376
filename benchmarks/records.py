"""What a benchmark measured, and on what."""

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
        section: which part of the benchmarks it belongs to.
        workload: what was done.
        hosts: environments at once.
        implementation: who did it.
        median, p95: over rounds, in ``unit``.
        ratio: to what the section compares with; ``None`` where there is nothing to compare.
        unit: of median and p95.
        rounds: measurements behind them.
        ratio_grown: to plain PyTorch with the same modules; ``None`` where there are none.
        samples: trained on in the time given, where that is an epoch of one host; otherwise ``None``.
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
    """A measurement of memory, made once; the ratio is to ``compared`` bytes, if there are any."""
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
    """Where, when and by which clock the numbers were made; ``load`` is what else ran, in busy cores."""
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
