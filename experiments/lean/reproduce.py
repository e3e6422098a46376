"""Measure how soon the lean recipe earns what the full one does: ``python -m experiments.lean.reproduce``, from the
repository's root.

Train controllers of ``digits_pays`` for a quarter of its iterations, unless done, evaluate them at several lengths on
the held-out hosts of ``growth_pays``, and renew the table of README.md. What the full recipe and the controls earn
there is read from the folders of ``growth_pays`` and ``training_time``.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch

from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import secure
from experiments.growing import curves, evaluate
from experiments.growth_pays.reproduce import STUDY
from experiments.jobs import Job, make
from experiments.tables import between_markers, interval, write_rows
from experiments.training_time.reproduce import NUM_HOSTS, Scores, bootstrap, check_same_hosts, read_scores, scores_of

SEEDS = (0, 1, 2, 3, 4)
LOOKS = (10, 20)
"""Iterations after which a run is evaluated."""
EPOCHS = 960
"""Environment epochs of one iteration."""
RUNS = Path("outputs/lean")
PAGE = Path(__file__).with_name("README.md")
FULL = STUDY.page.parent / "hosts.csv"
"""Held-out episodes of the full recipe after 80 iterations, and of the controls."""
EARLY = Path("experiments/training_time/hosts.csv")
"""Held-out episodes of the full recipe earlier and later, two run seeds."""
RIVALS = ("schedule_best", "probe_rule", "one_bit")
"""Controls whose return is compared."""


def job(seed: int) -> Job:
    """Return the run of one seed, on one core."""
    length = (f"trainer.num_iterations={max(LOOKS)}", f"trainer.checkpoint_every={LOOKS[0]}")
    closing = ("evaluation.controllers=[learned,never]", "evaluation.num_hosts=24")
    return Job(RUNS / f"seed{seed}", ("+preset=digits_pays", "env.mapping=matmul", *closing, *length, f"seed={seed}"))


def row(recipe: str, iterations: int, learned: Scores, rivals: dict[str, Scores]) -> str:
    """Format one length of training as a Markdown table row."""
    returns = learned.columns["episode_return"]
    gaps = [bootstrap(returns - rivals[name].columns["episode_return"], learned.families) for name in RIVALS]
    full = rivals["learned"].columns["episode_return"]
    to_full = interval(bootstrap(returns - full, learned.families), "+.1f") if recipe == "lean" else ""
    cells = [
        *(recipe, str(iterations), f"{iterations * EPOCHS:,}"),
        ", ".join(f"{value:.1f}" for value in returns.mean(1).tolist()),
        interval(bootstrap(returns, learned.families), ".1f"),
        to_full,
        *(interval(gap, "+.1f") for gap in gaps),
        f"{100 * float(learned.columns['test_accuracy'].mean()):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def early(iteration: int) -> Scores:
    """Return the scores of the full recipe after a number of iterations of ``training_time``."""
    with EARLY.open(encoding="utf-8") as file:
        rows = [line for line in csv.DictReader(file) if int(line["iteration"]) == iteration]
    return scores_of(rows)["learned"]


def main() -> None:
    """Run the study."""
    torch.set_num_threads(1)
    jobs = [job(seed) for seed in SEEDS]
    make(jobs, at_once=2)
    rivals = read_scores(FULL)
    rows, episodes = [], []
    for look in LOOKS:
        checkpoints = [RunFolder(one.folder).kept_checkpoint(look) for one in jobs]
        words = ("controllers=[learned,never]", "sampled=false", f"num_hosts={NUM_HOSTS}", "devices=[cpu,cpu]")
        path = evaluate(RUNS / f"evaluation-{look}", checkpoints, *words) / "hosts.csv"
        scores = read_scores(path)
        check_same_hosts(scores["never"], rivals["never"])
        rows.append(row("lean", look, scores["learned"], rivals))
        with path.open(encoding="utf-8") as file:
            lines = [line for line in csv.DictReader(file) if line["controller"] == "learned"]
        episodes += [{"iteration": look, **line} for line in lines]
    write_rows(PAGE.with_name("hosts.csv"), episodes)
    write_rows(PAGE.with_name("curves.csv"), curves(jobs))
    rows += [row("full", 40, early(40), rivals), row("full", 80, rivals["learned"], rivals)]
    heads = ("recipe", "iterations", "environment epochs", "return, by run seed", "return", "− full after 76,800")
    heads += (*(f"− {name}" for name in RIVALS), "test %")
    result = json.loads((jobs[0].folder / "result.json").read_text(encoding="utf-8"))
    seeds = ", ".join(map(str, SEEDS))
    text = PAGE.read_text(encoding="utf-8")
    text = between_markers(text, "commit", f"Commit `{result['git_sha'][:9]}`, run seeds {seeds}.")
    table = "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])
    PAGE.write_text(between_markers(text, "table", table), encoding="utf-8")
    print(table)


if __name__ == "__main__":
    secure()
    main()
