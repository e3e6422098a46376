"""What does an hour of training buy? ``python -m experiments.training_time.reproduce``, from the repository's root.

Trains controllers of ``growth_pays`` for longer, unless they are there, judges them at several lengths on the held-out
hosts of that study, and renews table and figure of README.md. What the others earn is read from its folder.

Axis legend: R = run seeds, I = held-out instances.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import secure
from esper.telemetry.statistics import crossed_bootstrap
from esper.views.drawing import Figure
from experiments.growing import curves, evaluate
from experiments.growth_pays.reproduce import STUDY
from experiments.jobs import Job, make
from experiments.tables import between_markers, interval

NUM_ITERATIONS = 200
"""About an hour of one core."""
LOOKS = (40, 80, 120, 160, 200)
"""Iterations after which a run is judged; each a multiple of ``CHECKPOINT_EVERY``."""
CHECKPOINT_EVERY = 40
SEEDS = (0, 1)
NUM_SHORT = 80
"""Iterations of the study's own runs."""
NUM_HOSTS = 64
ROUNDING = 0.03
"""Mean difference in test accuracy above which never-grown hosts are others.

Two makes of processor made one of 0.011, other hosts of the same families one of 0.06.
"""
RUNS = Path("outputs/training_time")
PAGE = Path("experiments/training_time/README.md")
RIVALS = ("probe_rule", "schedule_per_family", "schedule_best", "static_best")
"""Controls whose return is set beside."""
ACCURATE = "static_full"
"""The control whose test accuracy is."""
LEVELS = {"schedule_per_family": ":", "probe_rule": "-.", "schedule_best": "--"}
"""Controls that are drawn, and their lines."""

COLUMNS = ("episode_return", "test_accuracy", "added_parameters")


def job(seed: int) -> Job:
    """One long run, on one core."""
    length = (f"trainer.num_iterations={NUM_ITERATIONS}", f"trainer.checkpoint_every={CHECKPOINT_EVERY}")
    closing = ("evaluation.controllers=[learned,never]", "evaluation.num_hosts=24")
    return Job(RUNS / f"seed{seed}", (*closing, *STUDY.words, *length, f"seed={seed}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one controller came to on the held-out hosts.

    Attributes:
        families: of the I instances, in the order of their numbers.
        columns: name to ``float64 [R, I]``, with R = 1 for a controller that has no run seeds.
    """

    families: tuple[str, ...]
    columns: dict[str, Tensor]


def read_scores(path: Path) -> dict[str, Scores]:
    """Controller to scores, from the ``hosts.csv`` of an evaluation."""
    with path.open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (int(row["run"]), int(row["instance"])))
    scores = {}
    for name in dict.fromkeys(row["controller"] for row in rows):
        own = [row for row in rows if row["controller"] == name]
        runs = [[row for row in own if row["run"] == run] for run in dict.fromkeys(row["run"] for row in own)]
        tables = {
            column: torch.tensor([[float(row[column]) for row in run] for run in runs], dtype=torch.float64)
            for column in COLUMNS
        }
        scores[name] = Scores(families=tuple(row["family"] for row in runs[0]), columns=tables)
    return scores


def check_same_hosts(one: Scores, other: Scores) -> None:
    """Two evaluations saw the same hosts: their never-grown networks agree, but for what rounding makes of them.

    Raises:
        ValueError: they do not.
    """
    foreign = "the never-grown hosts are not those of growth_pays; its hosts.csv is of another evaluation"
    if one.families != other.families:
        raise ValueError(f"{foreign}: their families differ")
    gap = float((one.columns["test_accuracy"] - other.columns["test_accuracy"]).abs().mean())
    if gap >= ROUNDING:
        raise ValueError(
            f"{foreign}: their test accuracies differ by {gap:.3f} on average, {ROUNDING} at most is rounding"
        )


def bootstrap(table: Tensor, families: Sequence[str]) -> dict[str, float]:
    """Mean of ``[R, I]`` with its interval, as in ``result.json``."""
    return crossed_bootstrap(table, families, generator=generator("training time"))._asdict()


def row(head: Sequence[str], learned: Scores, rivals: dict[str, Scores]) -> str:
    """A length of training as a Markdown table row."""

    def gap(name: str, column: str) -> dict[str, float]:
        return bootstrap(learned.columns[column] - rivals[name].columns[column], learned.families)

    returns = learned.columns["episode_return"]
    cells = [
        *head,
        ", ".join(f"{value:.1f}" for value in returns.mean(1).tolist()),
        interval(bootstrap(returns, learned.families), ".1f"),
        *(interval(gap(name, "episode_return"), "+.1f") for name in RIVALS),
        f"{100 * float(learned.columns['test_accuracy'].mean()):.1f}",
        interval(gap(ACCURATE, "test_accuracy"), "+.1f", 100),
        f"{float(learned.columns['added_parameters'].mean()):,.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def pace(path: Path) -> float:
    """Minutes that an iteration of the study's runs took, the median over them, from its ``curves.csv``."""
    with path.open(encoding="utf-8") as file:
        ends = [float(line["seconds"]) for line in csv.DictReader(file) if int(line["iteration"]) == NUM_SHORT]
    return median(ends) / 60 / NUM_SHORT


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows that have the same keys."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def judge(jobs: Sequence[Job], never: Scores) -> dict[int, Scores]:
    """Iteration to what the controllers come to after it; writes every held-out episode beside the page."""
    looks, episodes = {}, []
    for look in LOOKS:
        checkpoints = [RunFolder(one.folder).kept_checkpoint(look) for one in jobs]
        words = ("controllers=[learned,never]", "sampled=false", f"num_hosts={NUM_HOSTS}", "devices=[cpu,cpu]")
        path = evaluate(RUNS / f"evaluation-{look}", checkpoints, *words) / "hosts.csv"
        scores = read_scores(path)
        check_same_hosts(scores["never"], never)
        looks[look] = scores["learned"]
        with path.open(encoding="utf-8") as file:
            episodes += [
                {"iteration": look, **line} for line in csv.DictReader(file) if line["controller"] == "learned"
            ]
    write_csv(PAGE.with_name("hosts.csv"), episodes)
    return looks


def figure(looks: dict[int, Scores], rivals: dict[str, Scores], minutes: float) -> None:
    """Held-out return against minutes of training, so many an iteration."""
    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    axes = canvas.subplots()
    for name, style in LEVELS.items():
        level = float(rivals[name].columns["episode_return"].mean())
        axes.axhline(level, color="0.45", linestyle=style, linewidth=1, label=name)
    for number, seed in enumerate(SEEDS):
        returns = [float(scores.columns["episode_return"][number].mean()) for scores in looks.values()]
        label = f"{NUM_ITERATIONS} iterations, run seed {seed}"
        axes.plot([minutes * look for look in looks], returns, "o-", label=label)
    returns = rivals["learned"].columns["episode_return"].mean(1).tolist()
    axes.plot([minutes * NUM_SHORT] * len(returns), returns, "kx", label=f"the study's runs, of {NUM_SHORT} iterations")
    axes.set(xlabel="minutes of one core", ylabel="return on held-out hosts, points", xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    canvas.savefig(PAGE.with_name("curve.png"), dpi=150)


def main() -> None:
    """Make the study."""
    jobs = [job(seed) for seed in SEEDS]
    make(jobs, at_once=2)
    study = STUDY.page.parent
    rivals = read_scores(study / "hosts.csv")
    looks = judge(jobs, rivals["never"])
    write_csv(PAGE.with_name("curves.csv"), curves(jobs))
    minutes = pace(study / "curves.csv")
    heads = (
        *("iterations", "of", "minutes", "return, by run seed", "return"),
        *(f"− {name}" for name in RIVALS),
        *("test %", f"− {ACCURATE}, test %", "added"),
    )
    rows = [row((str(NUM_SHORT), str(NUM_SHORT), f"{minutes * NUM_SHORT:.0f}"), rivals["learned"], rivals)]
    for look, scores in looks.items():
        rows.append(row((str(look), str(NUM_ITERATIONS), f"{minutes * look:.0f}"), scores, rivals))
    result = json.loads((jobs[0].folder / "result.json").read_text())
    seeds = ", ".join(map(str, SEEDS))
    text = between_markers(PAGE.read_text(), "commit", f"Commit `{result['git_sha'][:9]}`, run seeds {seeds}.")
    table = "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])
    PAGE.write_text(between_markers(text, "table", table))
    figure(looks, rivals, minutes)
    print(table)


if __name__ == "__main__":
    secure()
    main()
