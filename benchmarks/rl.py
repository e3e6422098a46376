"""Esper's learner beside MaskablePPO of sb3-contrib on the same hosts, ``python -m benchmarks rl``.

A finished run is a file and is not repeated, so that the whole can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import BEGIN, END
from esper.config import compose
from esper.runtime.devices import keep_freed_memory
from esper.runtime.files import write_atomic
from esper.runtime.rng import generator
from esper.telemetry.statistics import Interval, crossed_bootstrap

SECTION = "rl"
PRESETS = ("digits", "digits_pays")
FOLDER = Path(__file__).parent / "rl_runs"
PAGE = Path(__file__).parent / "rl.md"
NAMES = {"esper": "Esper's PPO", "flat": "MaskablePPO, flat", "factored": "MaskablePPO, factored"}
NUM_HOSTS = 48
COLUMNS = (
    *("preset", "steps", "learner", "run seeds", "held-out return", "Esper's minus it"),
    *("training return at a third", "at the end", "env-epochs per CPU second", "ratio to Esper's", "illegal actions"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, then print the table, and update the page if the runs are kept beside it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rl", description=__doc__)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS, help="hosts to train on")
    parser.add_argument("--learners", nargs="+", choices=NAMES, default=tuple(NAMES), help="learners to train")
    parser.add_argument("--seeds", type=int, default=5, help="run seeds, from 0 (default 5)")
    parser.add_argument(
        "--iterations", type=int, help="length of a run, in episodes of all hosts (default: the preset's)"
    )
    parser.add_argument("--quick", action="store_true", help="the preset smoke, to see that it runs")
    parser.add_argument("--out", type=Path, help=f"folder of the runs (default {FOLDER}; with --quick none is kept)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} must be at least 1")
    if options.iterations is not None and options.iterations < 1:
        parser.error(f"--iterations {options.iterations} must be at least 1")
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as nowhere:
        folder = options.out or (Path(nowhere) if options.quick else FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        num_hosts = 4 if options.quick else NUM_HOSTS
        for preset in ("smoke",) if options.quick else options.presets:
            length = compose(f"+preset={preset}").trainer.num_iterations
            iterations = None if options.iterations == length else options.iterations
            for seed in range(options.seeds):
                for learner in options.learners:  # in turns, so that a slow phase of the machine hits all
                    _run(folder, preset, learner, seed, num_hosts, iterations)
        lines = table(_finished(folder))
    print("\n".join(lines))
    if folder == FOLDER and not options.quick:
        text = PAGE.read_text(encoding="utf-8")
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        write_atomic(PAGE, "\n".join([f"{head}{BEGIN}", *lines, f"{END}{tail}"]))


def _run(folder: Path, preset: str, learner: str, seed: int, num_hosts: int, iterations: int | None) -> None:
    length = "" if iterations is None else f"-{iterations}"
    path = folder / f"{preset}{length}-{learner}-seed{seed}.json"
    if path.exists():
        return
    # Imported here, so that a table of finished runs needs no learner.
    from benchmarks.learners import train_and_judge

    found = train_and_judge(preset, learner, seed, num_hosts, iterations)
    write_atomic(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    print(f"{path}: held-out return {np.mean(found['returns']):.2f}", flush=True)


def _finished(folder: Path) -> list[dict[str, Any]]:
    """Read all finished runs, in order of run seeds."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(runs, key=lambda run: int(run["seed"]))


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Format runs as lines of a Markdown table, with the commits and machines that made them."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---:|---|" + "---:|" * (len(COLUMNS) - 3)]
    for kind in sorted({_kind(run) for run in runs}):
        alike = {name: [run for run in runs if (_kind(run), run["learner"]) == (kind, name)] for name in NAMES}
        lines += [f"| {' | '.join(_cells(alike, name))} |" for name in NAMES if alike[name]]
    made = sorted({(r["machine"]["cpu"], r["machine"]["torch"], str(r["machine"]["commit"])[:12]) for r in runs})
    return [*lines, "", *(f"{cpu} · torch {version} · commit {commit}" for cpu, version, commit in made)]


def _cells(alike: dict[str, list[dict[str, Any]]], learner: str) -> list[str]:
    runs, own = alike[learner], {run["seed"]: run for run in alike["esper"]}
    families, paired = runs[0]["families"], [run for run in runs if run["seed"] in own]
    returns = torch.tensor([run["returns"] for run in runs], dtype=torch.float64)
    difference = ratio = ""
    if learner != "esper" and paired:
        gains = [np.subtract(own[run["seed"]]["returns"], run["returns"]) for run in paired]
        difference = _interval(torch.from_numpy(np.stack(gains)), families, "+.2f")
        ratio = f"{np.median([_speed(run) / _speed(own[run['seed']]) for run in paired]):.2f}"
    chosen, illegal = (sum(run[name] for run in runs) for name in ("chosen", "illegal"))
    return [
        *(runs[0]["preset"], f"{runs[0]['steps']:,}", NAMES[learner], str(len(runs))),
        *(_interval(returns, families, ".2f"), difference),
        *(f"{np.mean([_around(run['curve'], share) for run in runs]):.2f}" for share in (1 / 3, 1.0)),
        *(f"{np.median([_speed(run) for run in runs]):.0f}", ratio),
        f"{100 * illegal / max(chosen, 1):.0f} %",
    ]


def _kind(run: dict[str, Any]) -> tuple[str, int]:
    """Return the preset and length of a run; only runs alike in both are compared."""
    return run["preset"], run["steps"]


def _speed(run: dict[str, Any]) -> float:
    return float(run["steps"] / run["cpu_seconds"])


def _around(curve: Sequence[float], share: float) -> float:
    """Return the mean of the last three rollouts up to a share of the training."""
    end = round(share * len(curve))
    return float(np.mean(curve[max(0, end - 3) : max(1, end)]))


def _interval(values: torch.Tensor, families: Sequence[str], spec: str) -> str:
    found: Interval = crossed_bootstrap(values, families, generator=generator("benchmarks", SECTION))
    return f"{found.estimate:{spec}} [{found.low:{spec}}, {found.high:{spec}}]"
