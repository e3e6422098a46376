"""Train the hosts of an image preset without growth, bare and with one blueprint everywhere, and print their accuracy.

Usage: python -m experiments.fashion_static.train [--preset fashion_mnist] [--epochs 10] [--hosts 2] [overrides ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

from esper.blueprints import blueprint_ids
from esper.config import compose
from esper.envs.instances import Instance, InstancePool
from esper.experiment.build import Experiment, build_experiment
from esper.growth.actions import BlendAlgorithm
from esper.population import GrowthStage, evaluate, train_epoch
from esper.runtime.rng import generator
from esper.runtime.terminal import secure

CONTROLS = ("nothing", "conv_light", "conv_heavy")


def main() -> None:
    """Parse the command line and train each control."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="fashion_mnist")
    parser.add_argument("--epochs", type=int, default=10, help="passes over all training images")
    parser.add_argument("--hosts", type=int, default=2, help="initialisations and data orders")
    parser.add_argument("--controls", nargs="+", default=list(CONTROLS), help="what stands in every slot")
    arguments, words = parser.parse_known_args()
    config = compose(f"+preset={arguments.preset}", *words)
    batches = len(build_experiment(config).task.train) // config.task.batch_size
    for control in arguments.controls:
        # An epoch is one pass, run by the loop mapping.
        experiment = build_experiment(
            compose(
                f"+preset={arguments.preset}",
                "env.mapping=loop",
                f"env.steps_per_epoch={batches}",
                f"env.num_epochs={arguments.epochs}",
                *words,
            )
        )
        train(experiment, control, arguments.hosts)


def train(experiment: Experiment, control: str, num_hosts: int) -> None:
    """Train intact hosts for all epochs at the preset's learning rate, and at a tenth of it in the last epoch."""
    shape = {"host_family": experiment.host.family, "num_blocks": 1, "num_classes": experiment.task.num_classes}
    pool = InstancePool.build({"intact": 1.0}, num_hosts, "held_out", **shape)
    instances, loader = list(pool), experiment.loader
    population = experiment.population(num_hosts)
    loader.place(population, range(num_hosts), instances)
    if control != "nothing":
        plant(experiment, population, instances, control)
    nothing = torch.zeros_like(population.blueprint, dtype=torch.bool)
    growth = GrowthStage(alpha=(population.blueprint >= 0).double(), developing=nothing, isolated=nothing)
    training, began = loader.training, time.perf_counter()
    for epoch in range(training.num_epochs):
        last = epoch == training.num_epochs - 1
        stats = train_epoch(
            population,
            loader.train(instances),
            loader.order(instances, [epoch] * num_hosts),
            growth,
            incubation="auxiliary",
            num_steps=training.steps_per_epoch,
            lr=training.lr * (0.1 if last else 1.0),
        )
        val, _ = evaluate(population, loader.val(instances), growth.alpha)
        row = {
            "everywhere": control,
            "epoch": epoch + 1,
            "train_loss": round(float(stats.loss.mean()), 4),
            "val_accuracy": [round(100 * value, 2) for value in val.accuracy.tolist()],
            "seconds": round(time.perf_counter() - began),
        }
        if last:
            test, _ = evaluate(population, loader.test(instances), growth.alpha)
            row["test_accuracy"] = [round(100 * value, 2) for value in test.accuracy.tolist()]
            row["parameters"] = int(population.num_host_parameters()[0] + population.num_parameters()[0].sum())
        print(json.dumps(row), flush=True)


def plant(experiment: Experiment, population, instances: list[Instance], control: str) -> None:  # type: ignore[no-untyped-def]
    """Put one blueprint into every slot of every host from the first epoch on."""
    blueprint = blueprint_ids().index(control)
    for env, instance in enumerate(instances):
        for slot in range(len(experiment.slot_ids)):
            stream = generator("module", instance.host_seed, slot, 0)
            population.germinate(env, slot, blueprint, BlendAlgorithm.ADD, stream)


if __name__ == "__main__":
    secure()
    sys.exit(main())
