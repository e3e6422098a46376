"""Compare learning on one rank and on two: ``python -m experiments.ranks.compare``, from the root of the repository.

Run whatever is missing, then print the table of README.md and draw its figure.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from esper.runtime.records import read_jsonl
from esper.runtime.terminal import secure
from esper.views.drawing import Figure
from experiments.jobs import Job, make

SEEDS = (0, 1, 2)
DEVICES = ("[cpu]", "[cpu,cpu]")
SETTINGS = (
    "+preset=digits",
    "recipe=full",
    "env.mapping=matmul",
    "trainer.num_iterations=15",
    "evaluation.controllers=[learned,never]",
)
RUNS = Path("outputs/ranks")
FIGURE = Path(__file__).parent / "learning_curves.png"
COLOURS = ("tab:blue", "tab:orange")


def job(devices: str, seed: int) -> Job:
    """Return the run for these devices and this seed."""
    name = f"{devices.count('cpu')}-ranks-seed{seed}"
    return Job(RUNS / name, (*SETTINGS, f"devices={devices}", f"seed={seed}"))


def curve(devices: str, seed: int) -> NDArray[np.float64]:
    """Read the mean return of training episodes in each iteration."""
    return np.array(
        [record["charts/episodic_return"] for record in read_jsonl(job(devices, seed).folder / "metrics.jsonl")]
    )


def held_out(devices: str, seed: int) -> float:
    """Read the mean return of the learned controller on the held-out hosts."""
    result = json.loads((job(devices, seed).folder / "result.json").read_text())
    [learned] = [entry for entry in result["controllers"] if entry["name"] == "learned"]
    return float(learned["episode_return"]["mean"])


def main() -> None:
    """Run the missing runs, print the table and draw the figure."""
    # Two runs of one rank side by side take both cores, like one run of two ranks.
    make([job("[cpu]", seed) for seed in SEEDS], at_once=2)
    make([job("[cpu,cpu]", seed) for seed in SEEDS])
    print("| devices | iterations 1-5 | 6-10 | 11-15 | held-out hosts |\n|" + "---|" * 5)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for devices, colour in zip(DEVICES, COLOURS, strict=True):
        curves = np.stack([curve(devices, seed) for seed in SEEDS])
        columns = [curves[:, begin : begin + 5].mean(1).tolist() for begin in (0, 5, 10)]
        columns.append([held_out(devices, seed) for seed in SEEDS])
        print(f"| {devices} | " + " | ".join(f"{mean(values):.2f} ± {stdev(values):.2f}" for values in columns) + " |")
        iterations = np.arange(1, curves.shape[1] + 1)
        axes.plot(iterations, curves.T, color=colour, alpha=0.35, linewidth=1)
        axes.plot(iterations, curves.mean(0), color=colour, linewidth=2, label=f"devices={devices}")
    axes.set(xlabel="iteration", ylabel="return of training episodes, points")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    secure()
    main()
