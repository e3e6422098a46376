"""Speed-up by a second rank: whole runs on ``[cpu]`` and on ``[cpu,cpu]`` with equally many environments."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.records import Record
from benchmarks.scale import Scale
from esper.config import Config, compose
from esper.runtime.records import read_jsonl

SECTION = "ranks"
DEVICES = ("[cpu]", "[cpu,cpu]")
FLOOR = DEVICES[0]

WORDS = (
    "env.mapping=matmul",
    "reward.twin=none",
    "evaluation.controllers=[never]",
    "evaluation.num_hosts=2",
    "telemetry.console=off",
    "telemetry.plots=false",
    "ppo.lr=1e-12",
)
"""Arguments of the timed runs, which keep everything but iterations short. The policy learns nothing, so that it grows
equally on one and two ranks; at the preset's learning rate one run grew far more within two updates and dominated
times.
"""


def run(scale: Scale) -> list[Record]:
    """Time iterations after the first, policy and update included, in milliseconds per environment and epoch."""
    found = []
    for num_envs, num_epochs in scale.rank_sizes:
        words = (
            f"+preset={scale.preset}",
            f"trainer.num_envs={num_envs}",
            f"trainer.num_iterations={scale.rank_iterations}",
            f"env.num_epochs={num_epochs}",
            f"num_threads={torch.get_num_threads()}",
            *WORDS,
        )
        times: dict[str, list[float]] = {devices: [] for devices in DEVICES}
        for number in range(scale.rank_rounds):
            for devices in DEVICES if number % 2 else DEVICES[::-1]:
                times[devices].append(_epoch_milliseconds(devices, words))
        found += _records(times, compose(*words))
    return found


def _records(times: dict[str, list[float]], config: Config) -> list[Record]:
    return [
        Record(
            section=SECTION,
            workload=f"{config.env.num_epochs} epochs",
            hosts=config.trainer.num_envs,
            implementation=f"devices={devices}",
            median=median(own),
            p95=float(np.quantile(own, 0.95)),
            ratio=median(np.divide(own, times[FLOOR]).tolist()),
            unit="ms",
            rounds=len(own),
            samples=config.env.steps_per_epoch * config.task.batch_size,
        )
        for devices, own in times.items()
    ]


def _epoch_milliseconds(devices: str, words: tuple[str, ...]) -> float:
    """Return the median over the iterations of one run, without the first, which warms up."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "esper.train", *words, f"devices={devices}", f"hydra.run.dir={run_dir}"]
        subprocess.run(command, check=True)
        rates = [float(record["charts/SPS"]) for record in read_jsonl(run_dir / "metrics.jsonl")]
    return 1e3 / median(rates[1:])
