"""Measure the gain of longer training: ``python -m experiments.training_time.reproduce``, from the repository's root.

Train controllers of ``growth_pays`` for longer, unless done, evaluate them at several lengths on the held-out hosts of
that study, and renew table and figure of README.md. The results of the other controllers are read from that study's
folder.

Axis legend: R = run seeds, I = held-out instances.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import secure
from esper.telemetry.statistics import crossed_bootstrap
from esper.views import palette
from esper.views.drawing import Figure
from experiments.growing import curves, evaluate
from experiments.growth_pays.reproduce import STUDY
from experiments.jobs import Job, make
from experiments.tables import between_markers, interval, write_rows

NUM_ITERATIONS = 200
"""Iterations of a run, about an hour of one core."""
LOOKS = (40, 80, 120, 160, 200)
"""Iterations after which a run is evaluated; each a multiple of ``CHECKPOINT_EVERY``."""
CHECKPOINT_EVERY = 40
SEEDS = (0, 1)
NUM_SHORT = 80
"""Iterations of the runs of growth_pays."""
NUM_HOSTS = 64
ROUNDING = 0.03
"""Mean difference in test accuracy above which never-grown hosts count as different hosts.

Two makes of processor differed by 0.011, other hosts of the same families by 0.06.
"""
RUNS = Path("outputs/training_time")
PAGE = Path("experiments/training_time/README.md")
RIVALS = ("probe_rule", "schedule_per_family", "schedule_best", "static_best")
"""Controls whose return is compared."""
ACCURATE = "static_full"
"""The control whose test accuracy is compared."""
LEVELS = {"schedule_per_family": ":", "probe_rule": "-.", "schedule_best": "--"}
"""Controls drawn as lines, with their line styles."""

COLUMNS = ("episode_return", "test_accuracy", "added_parameters")


def job(seed: int) -> Job:
    """Return the long run of one seed, on one core."""
    length = (f"trainer.num_iterations={NUM_ITERATIONS}", f"trainer.checkpoint_every={CHECKPOINT_EVERY}")
    closing = ("evaluation.controllers=[learned,never]", "evaluation.num_hosts=24")
    return Job(RUNS / f"seed{seed}", (*closing, *STUDY.words, *length, f"seed={seed}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of one controller on the held-out hosts.

    Attributes:
        families: family of each of the I instances, in the order of their numbers.
        columns: ``float64 [R, I]`` by column name, with R = 1 for a controller without run seeds.
    """

    families: tuple[str, ...]
    columns: dict[str, Tensor]


def read_scores(path: Path) -> dict[str, Scores]:
    """Read the scores of each controller from the ``hosts.csv`` of an evaluation."""
    with path.open(encoding="utf-8") as file:
        return scores_of(list(csv.DictReader(file)))


def scores_of(episodes: Sequence[Mapping[str, str]]) -> dict[str, Scores]:
    """Return the scores of each controller from the rows of a ``hosts.csv``."""
    rows = sorted(episodes, key=lambda row: (int(row["run"]), int(row["instance"])))
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
    """Check that two evaluations used the same hosts: their never-grown networks agree up to rounding.

    Raises:
        ValueError: the hosts differ.
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
    """Return the mean of ``[R, I]`` with its interval, as in ``result.json``."""
    return crossed_bootstrap(table, families, generator=generator("training time"))._asdict()


def row(head: Sequence[str], learned: Scores, rivals: dict[str, Scores]) -> str:
    """Format one length of training as a Markdown table row."""

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
    """Return the minutes per iteration of the runs of growth_pays, the median over ``curves.csv``."""
    with path.open(encoding="utf-8") as file:
        ends = [float(line["seconds"]) for line in csv.DictReader(file) if int(line["iteration"]) == NUM_SHORT]
    return median(ends) / 60 / NUM_SHORT


def judge(jobs: Sequence[Job], never: Scores) -> dict[int, Scores]:
    """Evaluate the controllers after each number of iterations; write every held-out episode beside the page."""
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
    write_rows(PAGE.with_name("hosts.csv"), episodes)
    return looks


def figure(looks: dict[int, Scores], rivals: dict[str, Scores], minutes: float) -> None:
    """Plot held-out return against minutes of training, given the minutes per iteration."""
    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    axes = canvas.subplots()
    for name, style in LEVELS.items():
        level = float(rivals[name].columns["episode_return"].mean())
        axes.axhline(level, color=palette.look(name).colour, linestyle=style, linewidth=1, label=name)
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
    """Run the study."""
    jobs = [job(seed) for seed in SEEDS]
    make(jobs, at_once=2)
    study = STUDY.page.parent
    rivals = read_scores(study / "hosts.csv")
    looks = judge(jobs, rivals["never"])
    write_rows(PAGE.with_name("curves.csv"), curves(jobs))
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
