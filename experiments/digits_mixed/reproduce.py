"""Train controllers of ``digits_mixed`` from the bandit's behaviour, and judge them on joins that they have never met:
``python -m experiments.digits_mixed.reproduce``, from the repository's root.

Missing runs, searches and evaluations are made in ``outputs/digits_mixed``; then the tables of README.md are renewed.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from esper.config import compose
from esper.runtime.devices import keep_freed_memory
from esper.runtime.rng import generator
from esper.runtime.terminal import secure
from esper.telemetry.statistics import crossed_bootstrap
from experiments.digits_mixed.bandit import KNOWN
from experiments.growing import Study, evaluate, options, table, train_and_tune
from experiments.tables import between_markers, interval

PLUGIN = "experiments.digits_mixed.bandit"
HOSTS = ("+preset=digits_mixed", "recipe=lean", "env.mapping=matmul", f"plugins=[{PLUGIN}]")
STUDY = Study(
    name="digits_mixed",
    words=(
        *HOSTS,
        *("imitation.controller=bandit", "imitation.iterations=12", "trainer.num_iterations=60"),
        *("ppo.ent_coef=0.001", "ppo.ent_coef_final=0.001"),
        *("ppo.lr=0.0002", "ppo.gae_lambda=1.0", "ppo.target_kl=0.02"),
    ),
    tuned=(("schedule_best",), ("static_best",), ("probe_rule",)),
    rivals=("learned", "bandit_cull", "bandit", "schedule_best", "probe_rule", "static_best", "random", "never"),
    beside=(),
)

ON_TRAINING_HOSTS = ("bandit", "schedule_best", "probe_rule")
"""Rivals that play the hosts of training, too; the last two have a few choices to fit to them."""


def mean_return(returns: Sequence[float], strata: Sequence[str]) -> str:
    """Format the mean of one run's returns with its interval over hosts."""
    table = torch.tensor([returns], dtype=torch.float64)
    found = crossed_bootstrap(table, strata, generator=generator("digits_mixed"))
    return f"{found.estimate:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def prices(result: dict[str, Any]) -> str:
    """Format returns by price."""
    rents = sorted({row["rent_weight"] for row in result["rents"]})
    cells = {(row["controller"], row["rent_weight"]): row["episode_return"] for row in result["rents"]}
    lines = [f"| controller | {' | '.join(f'rent {rent:g}' for rent in rents)} |", "|---|" + "---|" * len(rents)]
    for row in result["controllers"]:
        values = [interval(cells[row["name"], rent], "+.1f") for rent in rents]
        lines.append(f"| {row['name']} | {' | '.join(values)} |")
    return "\n".join(lines)


def of_run(folder: Path, controller: str, run: int) -> list[dict[str, str]]:
    """Return the rows of an evaluation's hosts for a controller of one run seed."""
    with (folder / "hosts.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if (row["controller"], int(row["run"])) == (controller, run)]


def earned(rows: Sequence[dict[str, str]]) -> str:
    """Format the mean return on some hosts of one run, with its interval over hosts."""
    return mean_return([float(row["episode_return"]) for row in rows], [row["rent_weight"] for row in rows])


def by_seed(held_out: Path, training: Path, runs: int) -> str:
    """Format the returns of every run, and of rivals: on training hosts, on held-out hosts, and there by price."""
    rents = sorted({float(row["rent_weight"]) for row in of_run(held_out, "learned", 0)})
    heads = ("controller", "training hosts", "held-out hosts", *(f"rent {rent:g}" for rent in rents))
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    rows = [(f"learned, run seed {run}", "learned", run) for run in range(runs)]
    for name, controller, run in (*rows, *((rival, rival, 0) for rival in ON_TRAINING_HOSTS)):
        own = of_run(held_out, controller, run)
        parts = [[row for row in own if float(row["rent_weight"]) == rent] for rent in rents]
        cells = [earned(part) for part in (of_run(training, controller, run), own, *parts)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, and write the tables."""
    asked = options(STUDY, hosts=128)
    torch.set_num_threads(1)
    keep_freed_memory()
    if not KNOWN.exists():
        subprocess.run([sys.executable, "-m", PLUGIN], check=True)
    jobs = [STUDY.job(seed) for seed in range(asked.seeds)]
    tunings = train_and_tune(STUDY, jobs, asked.hosts, asked.tuning_epochs, asked.at_once)
    runs = [job.folder for job in jobs]
    label = f"evaluation-{asked.seeds}-seeds-{asked.hosts}-hosts-{asked.tuning_epochs or 'as-training'}"
    words = (f"tuning=[{','.join(map(str, tunings))}]", f"devices={asked.devices}", "sampled=false")
    held_out = evaluate(
        STUDY.runs / label, runs, f"controllers=[{','.join(STUDY.rivals)}]", f"num_hosts={asked.hosts}", *words
    )
    training = evaluate(
        STUDY.runs / f"{label}-of-training",
        runs,
        f"controllers=[learned,{','.join(ON_TRAINING_HOSTS)}]",
        *("split=train", f"num_hosts={compose(*HOSTS).instances.num_train}"),
        *words,
    )
    result = json.loads((held_out / "result.json").read_text(encoding="utf-8"))
    parts = {
        "controllers": table(result),
        "prices": prices(result),
        "seeds": by_seed(held_out, training, asked.seeds),
    }
    text = STUDY.page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = between_markers(text, name, content)
    STUDY.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
