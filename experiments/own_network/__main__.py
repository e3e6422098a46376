"""Transfer of a trained controller to foreign networks: ``python -m experiments.own_network``.

Grows four networks for handwritten digits with four controllers, and renews results.csv and the table of README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch.nn import functional as F

import esper
from esper.blueprints import blueprint_ids
from esper.controllers import Controller, PlannedGermination, Schedule
from esper.experiment.checkpoint import load_checkpoint
from esper.experiment.shipped import shipped_controllers
from esper.runtime.provenance import environment_info
from esper.runtime.terminal import secure
from esper.tasks import load_task
from esper.telemetry.statistics import mean_sem
from experiments.own_network.networks import NETWORKS, SLOTS
from experiments.tables import between_markers, write_rows

FOLDER = Path(__file__).parent
SHIPPED = "digits_pays"
CONTROLLERS = (SHIPPED, "heuristic", "schedule", "never")
EPOCHS, BATCH, SEEDS = 40, 64, 8

Row = dict[str, Any]


def schedule() -> Controller:
    """Make the fixed plan: one 3x3 convolution in every slot, from the first epochs on."""
    kind = blueprint_ids().index("conv_light")
    return Schedule([[PlannedGermination(0, slot, kind) for slot in range(len(SLOTS))]])


def grow(network: str, controller: str, seed: int, epochs: int = EPOCHS) -> Row:
    """Train and grow one network, and return its row of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began, recipe = time.process_time(), NETWORKS[network]
    (x, y), val, test = ((split.inputs, split.targets) for split in load_task("digits").splits().values())
    model = recipe.build()
    optimizer = recipe.optimizer(list(model.parameters()))
    scheduler = recipe.scheduler(optimizer, epochs * -(-len(x) // BATCH))
    grower = esper.Grower(
        model,
        optimizer,
        slots=SLOTS,
        controller=schedule() if controller == "schedule" else controller,
        num_epochs=epochs,
        first_loss=lambda: F.cross_entropy(model(x[:BATCH]), y[:BATCH]),
        seed=seed,
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            grower.incubate(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
            scheduler.step()
        score = grower.end_epoch(lambda: esper.classification_score(model, [val])).score
    final = esper.classification_score(grower.finish(), [test])
    sheet = grower.sheet()
    return {
        "network": network,
        "controller": controller,
        "seed": seed,
        "val_accuracy": score.accuracy,
        "test_accuracy": final.accuracy,
        "host_parameters": sheet["host_parameters"],
        "added_parameters": sum(module["parameters"] for module in sheet["kept"].values()),
        "kept": "+".join(f"{path}:{module['blueprint']}" for path, module in sheet["kept"].items()),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def interval(values: Sequence[float], spec: str) -> str:
    """Format a mean with its 95 % interval, Student's over seeds."""
    found = mean_sem(torch.tensor(values, dtype=torch.float64))
    assert found is not None
    assert found.sem is not None, "an interval needs two seeds"
    half = float(stdtrit(len(values) - 1, 0.975)) * found.sem
    return f"{found.mean:{spec}} [{found.mean - half:{spec}}, {found.mean + half:{spec}}]"


def table(rows: Sequence[Row]) -> str:
    """Format test accuracy, differences from the shipped controller seed by seed, parameters, and modules kept."""
    heads = ("network", "controller", "test %", f"{SHIPPED} − it, points", "added parameters", "modules kept")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    accuracy = {(row["network"], row["controller"], row["seed"]): 100 * row["test_accuracy"] for row in rows}
    for network, controller in dict.fromkeys((row["network"], row["controller"]) for row in rows):
        own = [row for row in rows if (row["network"], row["controller"]) == (network, controller)]
        ahead = [accuracy[network, SHIPPED, row["seed"]] - accuracy[network, controller, row["seed"]] for row in own]
        cells = (
            f"{network}, {own[0]['host_parameters']} parameters",
            controller,
            interval([100 * row["test_accuracy"] for row in own], ".1f"),
            "" if controller == SHIPPED else interval(ahead, "+.1f"),
            f"{sum(row['added_parameters'] for row in own) / len(own):,.0f}",
            f"{sum(len(row['kept'].split('+')) for row in own if row['kept']) / len(own):.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def facts(rows: Sequence[Row]) -> str:
    """Describe the origin of the numbers."""
    origin = load_checkpoint(shipped_controllers()[SHIPPED])["origin"]
    info, seeds = environment_info(), len({row["seed"] for row in rows})
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    return (
        f"Seeds 0 to {seeds - 1}; {EPOCHS} epochs; commit `{(info['git_sha'] or 'unknown')[:9]}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, torch {info['versions']['torch']}; "
        f"{minutes:.0f} CPU minutes. {SHIPPED}: iteration {origin['iteration']} of "
        f"`{origin['command']}` at commit `{origin['commit'][:9]}`."
    )


def main() -> None:
    """Parse the command line, grow everything, and renew CSV and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds, at least 2")
    parser.add_argument("--at-once", type=int, default=1, help="processes, each on one core")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error(f"--seeds {arguments.seeds}: an interval needs at least 2")
    jobs = list(product(NETWORKS, CONTROLLERS, range(arguments.seeds)))
    rows = []
    with ProcessPoolExecutor(arguments.at_once) as pool:
        for row in pool.map(grow, *zip(*jobs, strict=True)):
            rows.append(row)
            print(row, flush=True)
    write_rows(FOLDER / "results.csv", rows)
    page = FOLDER / "README.md"
    text = between_markers(page.read_text(encoding="utf-8"), "own_network", f"{table(rows)}\n\n{facts(rows)}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    sys.exit(main())
