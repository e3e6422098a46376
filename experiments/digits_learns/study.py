"""Does the digits preset learn, and with which recipe? ``python -m experiments.digits_learns.study``, from the root.

Trains what is not in ``outputs/digits_learns`` yet, then renews the tables of README.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from esper.telemetry.records import read_jsonl
from experiments.jobs import Job, make
from experiments.tables import between_markers

PAGE = Path(__file__).with_name("README.md")
RUNS = Path("outputs/digits_learns")
SEEDS = range(5)
RIVALS = ("never", "random", "heuristic")
SETTINGS: dict[str, tuple[str, ...]] = {
    "joint": ("ppo.ratio=joint",),
    "per_head": ("ppo.ratio=per_head",),
}
"""Name to what follows the preset."""


def job(setting: str, seed: int) -> Job:
    """One run, with the closing table of ``make train``."""
    words = ("+preset=digits", "env.mapping=matmul", *SETTINGS[setting], f"seed={seed}")
    return Job(RUNS / f"{setting}-{seed}", words)


def with_error(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    return f"{mean(values):+.2f} ± {stdev(values) / len(values) ** 0.5:.2f}"


def result(folder: Path) -> dict[str, Any]:
    """What a run left at its end."""
    record: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return record


def returns(folder: Path) -> list[float]:
    """Training return by iteration."""
    return [record["charts/episodic_return"] for record in read_jsonl(folder / "metrics.jsonl")]


def quarters(folder: Path) -> tuple[float, float]:
    """Mean training return of the first and of the last quarter of iterations."""
    curve = returns(folder)
    width = len(curve) // 4
    return mean(curve[:width]), mean(curve[-width:])


def explained_variance(folder: Path) -> float:
    """Mean over the last third of training."""
    values = [record["losses/explained_variance"] for record in read_jsonl(folder / "metrics.jsonl")]
    return mean(value for value in values[-len(values) // 3 :] if value is not None)


def differences(folder: Path, rival: str) -> dict[str, float]:
    """Learned minus a rival on the held-out hosts, paired by host."""
    found: dict[str, float] = result(folder)["return_differences"][f"learned - {rival}"]
    return found


def setting_table(jobs: dict[str, list[Job]]) -> str:
    """Each setting over its run seeds."""
    heads = ("setting", "training, whole run", "training, last quarter", *(f"learned − {name}" for name in RIVALS))
    lines = [f"| {' | '.join((*heads, 'explained variance'))} |", "|" + "---|" * (len(heads) + 1)]
    for setting, runs in jobs.items():
        folders = [run.folder for run in runs]
        cells = [
            with_error([mean(returns(folder)) for folder in folders]),
            with_error([quarters(folder)[1] for folder in folders]),
            *(with_error([differences(folder, rival)["mean"] for folder in folders]) for rival in RIVALS),
            f"{mean(explained_variance(folder) for folder in folders):.2f}",
        ]
        lines.append(f"| `{setting}` | " + " | ".join(cells) + " |")
    first, *others = jobs.values()
    for name, runs in zip(list(jobs)[1:], others, strict=True):
        pairs = [(run.folder, base.folder) for run, base in zip(runs, first, strict=True)]
        cells = [
            with_error([mean(returns(own)) - mean(returns(base)) for own, base in pairs]),
            with_error([quarters(own)[1] - quarters(base)[1] for own, base in pairs]),
            *(
                with_error([differences(own, rival)["mean"] - differences(base, rival)["mean"] for own, base in pairs])
                for rival in RIVALS
            ),
            "",
        ]
        lines.append(f"| `{name}` − `{next(iter(jobs))}`, paired by run seed | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run_table(jobs: dict[str, list[Job]]) -> str:
    """Run by run: what it earns on the held-out hosts, ± the standard error over them."""
    heads = (
        "setting, run seed",
        "training, first → last quarter",
        *(f"learned − {name}" for name in RIVALS),
        "test %, learned",
        "never",
        "added",
        "WAIT",
        "minutes",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for setting, runs in jobs.items():
        for seed, run in zip(SEEDS, runs, strict=True):
            record = result(run.folder)
            table = {entry["name"]: entry for entry in record["controllers"]}
            learned = table["learned"]
            first, last = quarters(run.folder)
            pairs = [differences(run.folder, rival) for rival in RIVALS]
            cells = [
                f"`{setting}`, {seed}",
                f"{first:+.2f} → {last:+.2f}",
                *(f"{pair['mean']:+.2f} ± {pair['sem']:.2f}" for pair in pairs),
                *(f"{100 * table[name]['test_accuracy']['mean']:.1f}" for name in ("learned", "never")),
                f"{learned['added_parameters']['mean']:.0f}",
                f"{100 * learned['wait_share']['mean']:.0f} %",
                f"{record['wall_seconds'] / 60:.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is not there, two runs at a time, and write the tables."""
    jobs = {setting: [job(setting, seed) for seed in SEEDS] for setting in SETTINGS}
    make([run for runs in zip(*jobs.values(), strict=True) for run in runs], at_once=2)
    text = PAGE.read_text(encoding="utf-8")
    sample = result(next(iter(jobs.values()))[0].folder)
    facts = f"Commit `{sample['git_sha'][:9]}`, torch {sample['versions']['torch']}, {len(SEEDS)} run seeds a setting."
    for name, content in (("facts", facts), ("settings", setting_table(jobs)), ("runs", run_table(jobs))):
        text = between_markers(text, name, content)
    PAGE.write_text(text, encoding="utf-8")
    print(setting_table(jobs))


if __name__ == "__main__":
    main()
