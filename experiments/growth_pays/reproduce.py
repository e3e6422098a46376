"""Does growing pay? ``make reproduce``, or ``python -m experiments.growth_pays.reproduce`` from the repository's root.

Trains the controllers that are not there yet, evaluates them against every control, and renews the tables and figures
of README.md. Nothing is made twice: take ``outputs/growth_pays`` away to begin anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from esper.telemetry.records import read_jsonl
from experiments.jobs import Job, make
from experiments.tables import between_markers, interval

HERE = Path(__file__).parent
RUNS = Path("outputs/growth_pays")
FIGURES = ("frontier.png", "choices_learned.png")
TRAINING = (
    "+preset=digits_pays",
    "env.mapping=matmul",
    "evaluation.controllers=[learned,never]",
    "evaluation.num_hosts=24",
)


UNSEEN = ("centre_tap_12", "starved_1+centre_tap_2", "starved_0", "label_noise")
"""Families that training hosts do not have."""
RIVALS_THERE = ("learned", "heuristic", "probe_rule", "schedule_best", "random", "never", "static_full", "static_best")

TUNED_TOGETHER = (
    ("schedule_best", "schedule_per_family", "static_full", "static_best"),
    ("heuristic",),
    ("probe_rule",),
    ("probe_and_keep",),
)


def job(seed: int) -> Job:
    """One run of training, on one core."""
    return Job(RUNS / f"seed{seed}", (*TRAINING, f"seed={seed}"))


def evaluate(folder: Path, jobs: Sequence[Job], *words: str) -> Path:
    """Judge runs together, unless that has been done; the folder of the evaluation."""
    if not (folder / "result.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        checkpoints = ",".join(str(job.folder) for job in jobs)
        command = [sys.executable, "-m", "esper.evaluate", f"checkpoint=[{checkpoints}]", *words]
        subprocess.run([*command, "console=plain", f"hydra.run.dir={folder}"], check=True)
    return folder


def tune(one: Job, num_hosts: int, budget: int | None, at_once: int) -> list[Path]:
    """Tune the controls, some beside each other, each process on one core; what was found for each of them."""
    words = (f"num_hosts={num_hosts}", f"tuning_epochs={'null' if budget is None else budget}")

    def one_group(names: Sequence[str]) -> Path:
        folder = RUNS / f"tuning-{names[0]}-{budget or 'as-training'}"
        return evaluate(folder, [one], f"controllers=[{','.join(names)}]", *words) / "tuning.json"

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one_group, TUNED_TOGETHER))


def table(result: dict[str, Any]) -> str:
    """Rows of the README."""
    heads = (
        "controller",
        "return",
        "learned − it",
        "P(learned above)",
        "test %",
        "learned − it, test %",
        "added",
        "kept",
        "training FLOPs",
    )
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in result["controllers"]:
        cells = [
            row["name"],
            interval(row["episode_return"], "+.2f"),
            interval(row["return_difference"], "+.2f"),
            "" if row["improvement"] is None else f"{row['improvement']['estimate']:.2f}",
            interval(row["test_accuracy"], ".1f", 100),
            interval(row["test_difference"], "+.1f", 100),
            f"{row['added_parameters']['estimate']:,.0f}",
            f"{row['num_fossilized']:.2f}",
            f"× {row['flops_ratio']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def short_table(result: dict[str, Any]) -> str:
    """Rows of the repository's README."""
    rivals = {
        "learned": "",
        "schedule_per_family": ", an oracle told each host's family",
        "probe_rule": ", tuned rule on the slot probes",
        "schedule_best": ", the best plan for all hosts",
        "heuristic": ", tuned",
        "random": "",
        "never": "",
        "static_full": ", built whole, most accurate",
        "static_best": ", built whole, highest return",
    }
    lines = ["| controller | return | learned − it | test % | added parameters |", "|" + "---|" * 5]
    rows = {row["name"]: row for row in result["controllers"]}
    for name, what in rivals.items():
        row = rows[name]
        cells = [
            f"`{name}`{what}",
            interval(row["episode_return"], "+.1f"),
            interval(row["return_difference"], "+.1f"),
            interval(row["test_accuracy"], ".1f", 100),
            f"{row['added_parameters']['estimate']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    seeds = ", ".join(str(run["seed"]) for run in result["checkpoints"])
    return "\n".join(lines) + f"\n\nCommit `{result['git_sha'][:9]}`, run seeds {seeds}; returns in points of score."


def family_table(result: dict[str, Any], others: Sequence[str]) -> str:
    """What the learned controller kept, by host family, beside what three others earn there."""
    lines = [f"| family | learned | {' | '.join(others)} | what learned kept |", "|" + "---|" * 6]
    rows = {(row["controller"], row["family"]): row for row in result["families"]}
    for family in sorted({family for _, family in rows}):
        kept = ", ".join(f"{name} {100 * share:.0f} %" for name, share in rows["learned", family]["kept"].items())
        worth = [f"{rows[name, family]['episode_return']:+.1f}" for name in ("learned", *others)]
        lines.append(f"| {family} | {' | '.join(worth)} | {kept} |")
    return "\n".join(lines)


def seed_table(jobs: Sequence[Job], folder: Path) -> str:
    """Each run seed: what it earns on the held-out hosts, what it does there, and how its training ended."""
    with (folder / "hosts.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["controller"] == "learned"]
    heads = (
        "run seed",
        "return",
        "test %",
        "added",
        "slot kept most, by family",
        "explained variance",
        "head entropies",
    )
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for number, one in enumerate(jobs):
        own = [row for row in rows if int(row["run"]) == number]
        records = read_jsonl(one.folder / "metrics.jsonl")
        last = records[-len(records) // 3 :]
        entropies = {
            head: _mean([record[f"losses/entropy/{head}"] for record in last]) for head in ("op", "slot", "blueprint")
        }
        cells = [
            str(number),
            f"{_mean([float(row['episode_return']) for row in own]):+.1f}",
            f"{100 * _mean([float(row['test_accuracy']) for row in own]):.1f}",
            f"{_mean([float(row['added_parameters']) for row in own]):,.0f}",
            ", ".join(f"{family} {slot}" for family, slot in _slots(own).items()),
            f"{_mean([record['losses/explained_variance'] for record in last]):.2f}",
            ", ".join(f"{head} {entropy:.2f}" for head, entropy in entropies.items()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _slots(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    """Family to the number of the slot that was kept most often there, or to a dash for none."""
    kept: dict[str, Counter[str]] = {}
    for row in rows:
        slot = row["kept"].split(":")[0]
        kept.setdefault(row["family"], Counter())[slot.rpartition("c")[2] or "–"] += 1
    return {family: kept[family].most_common(1)[0][0] for family in sorted(kept)}


def _mean(values: Sequence[float | None]) -> float:
    """Of those that were measured."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured)


def learning_curves(jobs: Sequence[Job], result: dict[str, Any], path: Path) -> None:
    """Training return against environment epochs, a line per run seed, beside what controls earn on held-out hosts."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    levels = {row["name"]: row["episode_return"]["estimate"] for row in result["controllers"]}
    for name, style in (
        ("schedule_per_family", ":"),
        ("probe_rule", "-."),
        ("schedule_best", "--"),
        ("heuristic", "-"),
    ):
        if name in levels:
            axes.axhline(levels[name], color="0.45", linestyle=style, linewidth=1, label=f"{name} (held-out)")
    for number, one in enumerate(jobs):
        records = read_jsonl(one.folder / "metrics.jsonl")
        epochs = np.array([record["charts/env_epochs"] for record in records]) / 1000
        returns = np.array([record["charts/episodic_return"] for record in records], dtype=float)
        width = max(1, len(returns) // 20)
        smooth = np.convolve(returns, np.ones(width) / width, mode="valid")
        axes.plot(
            epochs[width - 1 :], smooth, color="tab:blue", alpha=0.7, label="learned (training)" if not number else None
        )
    axes.set(xlabel="environment epochs, thousands", ylabel="return, points")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


def write(jobs: Sequence[Job], tunings: Sequence[Path], folder: Path, unseen: Path) -> None:
    """Renew tables and figures here, and the table of the repository's README."""
    result, elsewhere = (json.loads((each / "result.json").read_text()) for each in (folder, unseen))
    learning_curves(jobs, result, HERE / "learning_curves.png")
    for name in FIGURES:
        shutil.copyfile(folder / "plots" / name, HERE / name)
    shutil.copyfile(folder / "controllers.csv", HERE / "controllers.csv")
    parts = {
        "facts": facts(jobs, tunings, result),
        "table": table(result),
        "families": family_table(result, ("schedule_best", "probe_rule", "schedule_per_family")),
        "unseen": table(elsewhere),
        "unseen_families": family_table(elsewhere, ("schedule_best", "probe_rule", "static_best")),
        "seeds": seed_table(jobs, folder),
    }
    readme = HERE / "README.md"
    text = readme.read_text()
    for name, content in parts.items():
        text = between_markers(text, name, content)
    readme.write_text(text)
    front = Path("README.md")
    front.write_text(between_markers(front.read_text(), "growth_pays", short_table(result)))
    print(parts["table"])


def facts(jobs: Sequence[Job], tunings: Sequence[Path], result: dict[str, Any]) -> str:
    """Where the numbers come from."""
    hosts = result["controllers"][0]["num_hosts"]
    searching = sum(json.loads((path.parent / "result.json").read_text())["wall_seconds"] for path in tunings)
    minutes = [json.loads((one.folder / "result.json").read_text())["wall_seconds"] / 60 for one in jobs]
    seeds = ", ".join(str(run["seed"]) for run in result["checkpoints"])
    return (
        f"Commit `{result['git_sha'][:9]}`, run seeds {seeds}; {hosts} held-out hosts, {result['num_cpus']} cores, "
        f"{result['tuning']['budget']:,} environment epochs for each tuned control "
        f"({result['checkpoints'][0]['env_epochs']:,} for training). Training took {min(minutes):.0f} to "
        f"{max(minutes):.0f} minutes a run seed on one core, tuning {searching / 60:.0f} minutes of a core, judging "
        f"{result['wall_seconds'] / 60:.0f} minutes. "
        f"On the way from the best fixed schedule to the oracle: {100 * result['way_to_the_oracle']:.0f} %."
    )


def main() -> None:
    """Train, tune, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="run seeds, from 0")
    parser.add_argument("--at-once", type=int, default=2, help="runs and searches beside each other, each on one core")
    parser.add_argument("--devices", default="[cpu,cpu]", help="of the evaluation")
    parser.add_argument("--hosts", type=int, default=64, help="held-out hosts")
    parser.add_argument("--tuning-epochs", type=int, help="of each control; as many as training took, if not given")
    options = parser.parse_args()
    jobs = [job(seed) for seed in range(options.seeds)]
    make(jobs, options.at_once)
    tunings = tune(jobs[0], options.hosts, options.tuning_epochs, options.at_once)
    words = (
        f"num_hosts={options.hosts}",
        f"devices={options.devices}",
        f"tuning=[{','.join(map(str, tunings))}]",
    )
    label = f"{options.seeds}-seeds-{options.hosts}-hosts-{options.tuning_epochs or 'as-training'}"
    folder = evaluate(RUNS / f"evaluation-{label}", jobs, *words)
    families = ", ".join(f"{family}: 1" for family in UNSEEN)
    rivals = f"controllers=[{','.join(RIVALS_THERE)}]"
    unseen = evaluate(RUNS / f"unseen-{label}", jobs, *words, rivals, f"+families={{{families}}}")
    write(jobs, tunings, folder, unseen)


if __name__ == "__main__":
    main()
