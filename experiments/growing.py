"""Studies of the benefit of growing: train controllers, tune controls, evaluate all on the same held-out hosts, write
results.

Finished parts are kept: delete ``outputs/<study>`` to start again.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esper.growth.actions import HEADS
from esper.runtime.controller_names import LEARNED
from esper.runtime.records import read_jsonl
from esper.views.drawing import Figure
from esper.views.palette import look
from esper.views.plots import legend_above, save, style
from experiments.jobs import Job
from experiments.tables import between_markers, interval, write_rows

FIGURES = ("frontier.png", "choices_learned.png")
TABLES = ("controllers.csv", "hosts.csv")
LEVELS = (("schedule_per_family", ":"), ("probe_rule", "-."), ("schedule_best", "--"), ("heuristic", "-"))
"""Controls drawn as lines beside learning curves, with their line styles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Definition of a study: training runs, controls and evaluation.

    Attributes:
        name: name of the study's folders below ``experiments`` and ``outputs``.
        words: arguments of training, without the run seed.
        tuned: tuned controls, grouped by the search that serves them.
        rivals: all controls to evaluate.
        plugins: modules that register controls of the study's own.
        beside: controls shown in the table of families.
        seeds: number of run seeds, from 0.
        tuning_epochs: environment epochs for each search; default: as many as training took.
        unseen: host families absent from training, evaluated separately.
        unseen_rivals: controls to evaluate on the unseen families.
        unseen_beside: controls shown in the table of unseen families.
    """

    name: str
    words: tuple[str, ...]
    tuned: tuple[tuple[str, ...], ...]
    rivals: tuple[str, ...]
    beside: tuple[str, ...]
    plugins: tuple[str, ...] = ()
    seeds: int = 5
    tuning_epochs: int | None = None
    unseen: tuple[str, ...] = ()
    unseen_rivals: tuple[str, ...] = ()
    unseen_beside: tuple[str, ...] = ()

    @property
    def page(self) -> Path:
        """README of the study."""
        return Path("experiments") / self.name / "README.md"

    @property
    def runs(self) -> Path:
        """Folder of the study's runs."""
        return Path("outputs") / self.name

    def job(self, seed: int) -> Job:
        """Return the training run of one seed, on one core."""
        closing = ("evaluation.controllers=[learned,never]", "evaluation.num_hosts=24")
        return Job(self.runs / f"seed{seed}", (*closing, *self.words, f"seed={seed}"))


def evaluate(folder: Path, checkpoints: Sequence[Path], *words: str) -> Path:
    """Evaluate checkpoints or run folders together, unless already done, and return the evaluation's folder."""
    if not (folder / "result.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        names = ",".join(map(str, checkpoints))
        command = [sys.executable, "-m", "esper.evaluate", f"checkpoint=[{names}]", *words]
        subprocess.run([*command, "console=plain", f"hydra.run.dir={folder}"], check=True)
    return folder


def train_and_tune(study: Study, jobs: Sequence[Job], num_hosts: int, budget: int | None, at_once: int) -> list[Path]:
    """Train the controllers and tune the controls, several at a time, each process on one core.

    A search plays on the hosts of the first job, so it waits for that job only. After a failure nothing more starts.

    Returns:
        Path of the tuning results for each group of controls.

    Raises:
        CalledProcessError: a run or a search failed.
    """
    words = (f"num_hosts={num_hosts}", f"tuning_epochs={'null' if budget is None else budget}")

    def one_group(names: Sequence[str]) -> Path:
        training[0].result()
        folder = study.runs / f"tuning-{names[0]}-{budget or 'as-training'}"
        return evaluate(folder, [jobs[0].folder], f"controllers=[{','.join(names)}]", *words) / "tuning.json"

    with ThreadPoolExecutor(at_once) as pool:
        training = [pool.submit(job.run) for job in jobs]
        tuning = [pool.submit(one_group, names) for names in study.tuned]
        ended, _ = wait([*training, *tuning], return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for future in ended:
        future.result()
    return [group.result() for group in tuning]


def table(result: dict[str, Any]) -> str:
    """Format the rows of the README's table of controllers."""
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
            f"× {row['flops_ratio']['estimate']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def family_table(result: dict[str, Any], others: Sequence[str]) -> str:
    """Format a table by host family: modules kept by the learned controller, and returns of all controllers."""
    lines = [f"| family | learned | {' | '.join(others)} | what learned kept |", "|" + "---|" * (len(others) + 3)]
    rows = {(row["controller"], row["family"]): row for row in result["families"]}
    for family in sorted({family for _, family in rows}):
        kept = ", ".join(f"{name} {100 * share:.0f} %" for name, share in rows["learned", family]["kept"].items())
        worth = [f"{rows[name, family]['episode_return']:+.1f}" for name in ("learned", *others)]
        lines.append(f"| {family} | {' | '.join(worth)} | {kept} |")
    return "\n".join(lines)


def seed_table(jobs: Sequence[Job], folder: Path) -> str:
    """Format a table by run seed: held-out return, kept slots, and training statistics."""
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
        entropies = {head: _mean([record[f"losses/entropy/{head}"] for record in last]) for head in HEADS}
        cells = [
            str(number),
            _average(own, "episode_return", "+.1f"),
            _average(own, "test_accuracy", ".1f", 100),
            _average(own, "added_parameters", ",.0f"),
            ", ".join(f"{family} {slot}" for family, slot in _slots(own).items()),
            _number(_mean([record["losses/explained_variance"] for record in last]), ".2f"),
            ", ".join(f"{head} {_number(entropy, '.2f')}" for head, entropy in entropies.items()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _slots(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return, for each family, the slots most often kept together, or a dash for none."""
    kept: dict[str, Counter[str]] = {}
    for row in rows:
        slots = sorted(module.split(":")[0].rpartition("c")[2] for module in row["kept"].split("+"))
        kept.setdefault(row["family"], Counter())["+".join(slots) or "–"] += 1
    return {family: kept[family].most_common(1)[0][0] for family in sorted(kept)}


def _average(rows: Sequence[dict[str, str]], name: str, spec: str, scale: float = 1.0) -> str:
    """Format the mean of a column of ``hosts.csv``."""
    return _number(_mean([scale * float(row[name]) for row in rows]), spec)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the measured values, ``None`` if there are none."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else f"{value:{spec}}"


def learning_curves(rows: Sequence[dict[str, Any]], levels: Mapping[str, float], path: Path) -> None:
    """Plot training return against environment epochs, one line per run seed, with the held-out returns of controls.

    Args:
        rows: result of :func:`curves`.
        levels: held-out returns by controller.
        path: PNG to write.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    style(axes)
    for name, line in LEVELS:
        if name in levels:
            label = f"{name} (held-out)"
            axes.axhline(levels[name], color=look(name).colour, linestyle=line, linewidth=1, label=label)
    for number in sorted({row["run"] for row in rows}):
        own = [row for row in rows if row["run"] == number]
        epochs = np.array([row["env_epochs"] for row in own]) / 1000
        returns = np.array([row["episodic_return"] for row in own], dtype=float)
        width = max(1, len(returns) // 20)
        smooth = np.convolve(returns, np.ones(width) / width, mode="valid")
        label = None if number else f"{LEARNED} (training)"
        axes.plot(epochs[width - 1 :], smooth, color=look(LEARNED).colour, alpha=0.7, label=label)
    axes.set(xlabel="environment epochs, thousands", ylabel="return, points")
    legend_above(axes, 3, size=8)
    save(figure, path)


def curves(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Read results and elapsed training seconds of each iteration of each run; ``None`` = not measured."""
    rows = []
    for number, one in enumerate(jobs):
        seconds, epochs = 0.0, 0
        for record in read_jsonl(one.folder / "metrics.jsonl"):
            seconds += (record["charts/env_epochs"] - epochs) / record["charts/SPS"]
            epochs = record["charts/env_epochs"]
            rows.append(
                {
                    "run": number,
                    "iteration": record["iteration"],
                    "env_epochs": epochs,
                    "seconds": round(seconds, 1),
                    "episodic_return": record["charts/episodic_return"],
                    "explained_variance": record["losses/explained_variance"],
                }
            )
    return rows


def facts(jobs: Sequence[Job], tunings: Sequence[Path], result: dict[str, Any]) -> str:
    """Describe the origin of the numbers: commit, seeds, hosts, budgets and times."""
    way = result["way_to_the_oracle"]
    hosts = result["controllers"][0]["num_hosts"]
    searching = sum(json.loads((path.parent / "result.json").read_text())["wall_seconds"] for path in tunings)
    minutes = [json.loads((one.folder / "result.json").read_text())["wall_seconds"] / 60 for one in jobs]
    seeds = ", ".join(str(run["seed"]) for run in result["checkpoints"])
    return (
        f"Commit `{result['git_sha'][:9]}`, run seeds {seeds}; {hosts} held-out hosts, {result['num_cpus']} cores, "
        f"{result['tuning']['budget']:,} environment epochs for each tuned control but `schedule_per_family` "
        f"({result['checkpoints'][0]['env_epochs']:,} for training). Training took {min(minutes):.0f} to "
        f"{max(minutes):.0f} minutes a run seed on one core, tuning {searching / 60:.0f} minutes of a core, judging "
        f"{result['wall_seconds'] / 60:.0f} minutes."
        + ("" if way is None else f" On the way from `schedule_best` to `schedule_per_family`: {100 * way:.0f} %.")
    )


def reproduce(
    study: Study,
    *,
    seeds: int,
    at_once: int,
    devices: str,
    hosts: int,
    tuning_epochs: int | None,
) -> dict[str, Any]:
    """Train, tune and evaluate whatever is missing, and renew tables and figures.

    Returns:
        ``result.json`` of the evaluation.
    """
    jobs = [study.job(seed) for seed in range(seeds)]
    tunings = train_and_tune(study, jobs, hosts, tuning_epochs, at_once)
    words = (
        f"num_hosts={hosts}",
        f"devices={devices}",
        f"tuning=[{','.join(map(str, tunings))}]",
        f"plugins=[{','.join(study.plugins)}]",
    )
    label = f"{seeds}-seeds-{hosts}-hosts-{tuning_epochs or 'as-training'}"
    rivals = f"controllers=[{','.join(study.rivals)}]"
    trained = [job.folder for job in jobs]
    folder = evaluate(study.runs / f"evaluation-{label}", trained, *words, rivals)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    parts = {
        "facts": facts(jobs, tunings, result),
        "table": table(result),
        "families": family_table(result, study.beside),
        "seeds": seed_table(jobs, folder),
    }
    if study.unseen:
        families = f"+families={{{', '.join(f'{family}: 1' for family in study.unseen)}}}"
        rivals = f"controllers=[{','.join(study.unseen_rivals)}]"
        unseen = evaluate(study.runs / f"unseen-{label}", trained, *words, rivals, families)
        elsewhere = json.loads((unseen / "result.json").read_text())
        parts |= {"unseen": table(elsewhere), "unseen_families": family_table(elsewhere, study.unseen_beside)}
        for name in TABLES:
            shutil.copyfile(unseen / name, study.page.with_name(f"unseen_{name}"))
    text = study.page.read_text()
    for name, content in parts.items():
        text = between_markers(text, name, content)
    study.page.write_text(text)
    trained_curves = curves(jobs)
    levels = {row["name"]: row["episode_return"]["estimate"] for row in result["controllers"]}
    learning_curves(trained_curves, levels, study.page.with_name("learning_curves.png"))
    for name in FIGURES:
        shutil.copyfile(folder / "plots" / name, study.page.with_name(name))
    for name in TABLES:
        shutil.copyfile(folder / name, study.page.with_name(name))
    write_rows(study.page.with_name("curves.csv"), trained_curves)
    print(parts["table"])
    return result


def _count(text: str) -> int:
    """Parse a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text!r}")
    return int(text)


def _epochs(text: str) -> int | None:
    """Parse a number of epochs, or ``None`` for as many as training took."""
    if text == "as-training":
        return None
    try:
        return _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or as-training") from None


def options(study: Study, hosts: int = 64) -> argparse.Namespace:
    """Read seeds, at_once, devices, hosts and tuning_epochs from the command line."""
    parser = argparse.ArgumentParser(description=f"Train, tune, judge and write the study {study.name}.")
    parser.add_argument("--seeds", type=_count, default=study.seeds, help="run seeds, from 0")
    parser.add_argument(
        "--at-once", type=_count, default=2, help="runs and searches beside each other, each on one core"
    )
    parser.add_argument("--devices", default="[cpu,cpu]", help="of the evaluation")
    parser.add_argument("--hosts", type=_count, default=hosts, help="held-out hosts")
    parser.add_argument(
        "--tuning-epochs",
        type=_epochs,
        default=study.tuning_epochs,
        help=f"environment epochs for each search, or as-training (default: {study.tuning_epochs or 'as-training'})",
    )
    return parser.parse_args()


def from_command_line(study: Study) -> dict[str, Any]:
    """Call :func:`reproduce` with the arguments of the command line."""
    return reproduce(study, **vars(options(study)))
