"""Train controllers of ``digits_mixed`` from the bandit's behaviour, and judge them on joins that they have never met:
``python -m experiments.digits_mixed.reproduce``, from the repository's root.

Missing runs, searches and evaluations are made in ``outputs/digits_mixed``; then the tables of README.md are renewed.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import esper
from esper.config import compose
from esper.evaluation.play import RUN_SEED, play
from esper.experiment.build import Experiment, build_experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.files import write_atomic
from esper.runtime.rng import generator
from esper.runtime.terminal import say, secure
from esper.telemetry.statistics import crossed_bootstrap
from experiments.digits_mixed.bandit import KNOWN
from experiments.growing import Study, evaluate, table, train_and_tune
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


def experiment(words: Sequence[str], num_hosts: int) -> Experiment:
    """Build an experiment with so many held-out hosts."""
    sizes = (f"instances.num_held_out={num_hosts}", f"evaluation.num_hosts={num_hosts}")
    return build_experiment(compose(*words, *sizes))


def on_training_hosts(runs: Sequence[Path]) -> dict[str, Any]:
    """Let every learned controller play the hosts that it was trained on, greedily; return values for JSON."""
    one = experiment(HOSTS, num_hosts=1)
    hosts = one.config.instances.num_train
    pool, twins = one.pool("train", hosts), one.twins(hosts, lambda done, total: None)
    found: dict[str, Any] = {"learned": []}
    for run in runs:
        env = one.env(range(hosts), pool, twins, run_seed=RUN_SEED, measure_test=True)
        episodes = play(esper.load_controller(run, hosts), env, lambda done, total: None).episodes
        found["learned"].append([episode.episode_return for episode in episodes])
        found["prices"] = [f"price {episode.instance.rent_weight}" for episode in episodes]
        say(f"{run.name}, training hosts: {sum(found['learned'][-1]) / hosts:+.1f}")
    return found


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a JSON file holds, made first if it is missing."""
    if not path.exists():
        write_atomic(path, json.dumps(make(), indent=1) + "\n")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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


def by_seed(folder: Path, training: dict[str, Any]) -> str:
    """Format the returns of every run: on training hosts, on held-out hosts, and there by price."""
    with (folder / "hosts.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["controller"] == "learned"]
    rents = sorted({float(row["rent_weight"]) for row in rows})
    heads = ("run seed", "training hosts", "held-out hosts", *(f"rent {rent:g}" for rent in rents))
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for number, trained_on in enumerate(training["learned"]):
        own = [row for row in rows if int(row["run"]) == number]
        cells = [mean_return(trained_on, training["prices"])]
        for rent in (None, *rents):
            part = [row for row in own if rent in (None, float(row["rent_weight"]))]
            returns = [float(row["episode_return"]) for row in part]
            cells.append(mean_return(returns, [row["rent_weight"] for row in part]))
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=STUDY.seeds, help="run seeds, from 0")
    parser.add_argument("--at-once", type=int, default=2, help="runs and searches beside each other, each on one core")
    parser.add_argument("--devices", default="[cpu,cpu]", help="of the evaluation")
    parser.add_argument("--hosts", type=int, default=128, help="held-out hosts")
    parser.add_argument("--tuning-epochs", type=int, help="epochs of each search (default: as many as training took)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if not KNOWN.exists():
        subprocess.run([sys.executable, "-m", PLUGIN], check=True)
    jobs = [STUDY.job(seed) for seed in range(options.seeds)]
    tunings = train_and_tune(STUDY, jobs, options.hosts, options.tuning_epochs, options.at_once)
    runs = [job.folder for job in jobs]
    folder = evaluate(
        STUDY.runs / f"evaluation-{options.seeds}-seeds-{options.hosts}-hosts-{options.tuning_epochs or 'as-training'}",
        runs,
        f"controllers=[{','.join(STUDY.rivals)}]",
        f"tuning=[{','.join(map(str, tunings))}]",
        f"num_hosts={options.hosts}",
        f"devices={options.devices}",
        "sampled=false",
    )
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    training = kept(folder / "training.json", lambda: on_training_hosts(runs))
    parts = {
        "controllers": table(result),
        "prices": prices(result),
        "seeds": by_seed(folder, training),
    }
    text = STUDY.page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = between_markers(text, name, content)
    STUDY.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
