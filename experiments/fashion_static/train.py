"""Train the hosts of an image preset without growth, bare and with one blueprint everywhere, and print what they reach.

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
from esper.experiment.build import Laboratory, build_laboratory
from esper.growth.actions import BlendAlgorithm
from esper.population import GrowthStage, evaluate, train_epoch
from esper.runtime.rng import generator
from esper.runtime.terminal import secure

CONTROLS = ("nothing", "conv_light", "conv_heavy")


def main() -> None:
    """Read the command line and train each control."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="fashion_mnist")
    parser.add_argument("--epochs", type=int, default=10, help="passes over all training images")
    parser.add_argument("--hosts", type=int, default=2, help="initialisations and data orders")
    parser.add_argument("--controls", nargs="+", default=list(CONTROLS), help="what stands in every slot")
    arguments, words = parser.parse_known_args()
    config = compose(f"+preset={arguments.preset}", *words)
    batches = len(build_laboratory(config).task.train) // config.task.batch_size
    for control in arguments.controls:
        # An epoch is one pass; a loop, because nothing here has to be compared with a stack.
        laboratory = build_laboratory(
            compose(
                f"+preset={arguments.preset}",
                "env.mapping=loop",
                f"env.steps_per_epoch={batches}",
                f"env.num_epochs={arguments.epochs}",
                *words,
            )
        )
        train(laboratory, control, arguments.hosts)


def train(laboratory: Laboratory, control: str, num_hosts: int) -> None:
    """Train intact hosts for all epochs, with the learning rate of the preset, then a tenth of it in the last epoch."""
    shape = {"host_family": laboratory.host.family, "num_blocks": 1, "num_classes": laboratory.task.num_classes}
    pool = InstancePool.build({"intact": 1.0}, num_hosts, "held_out", **shape)
    instances, nursery = list(pool), laboratory.nursery
    population = laboratory.population(num_hosts)
    nursery.place(population, range(num_hosts), instances)
    if control != "nothing":
        plant(laboratory, population, instances, control)
    nothing = torch.zeros_like(population.blueprint, dtype=torch.bool)
    growth = GrowthStage(alpha=(population.blueprint >= 0).double(), developing=nothing, isolated=nothing)
    training, began = nursery.training, time.perf_counter()
    for epoch in range(training.num_epochs):
        last = epoch == training.num_epochs - 1
        stats = train_epoch(
            population,
            nursery.task.train.inputs,
            nursery.task.train.targets,
            nursery.order(instances, [epoch] * num_hosts),
            growth,
            incubation="auxiliary",
            num_steps=training.steps_per_epoch,
            lr=training.lr * (0.1 if last else 1.0),
            take=nursery.take,
        )
        val, _ = evaluate(population, nursery.val(instances), growth.alpha)
        row = {
            "everywhere": control,
            "epoch": epoch + 1,
            "train_loss": round(float(stats.loss.mean()), 4),
            "val_accuracy": [round(100 * value, 2) for value in val.accuracy.tolist()],
            "seconds": round(time.perf_counter() - began),
        }
        if last:
            test, _ = evaluate(population, nursery.test(instances), growth.alpha)
            row["test_accuracy"] = [round(100 * value, 2) for value in test.accuracy.tolist()]
            row["parameters"] = int(population.num_host_parameters()[0] + population.num_parameters()[0].sum())
        print(json.dumps(row), flush=True)


def plant(laboratory: Laboratory, population, instances: list[Instance], control: str) -> None:  # type: ignore[no-untyped-def]
    """One blueprint in every slot of every host, from the first epoch on."""
    blueprint = blueprint_ids().index(control)
    for env, instance in enumerate(instances):
        for slot in range(len(laboratory.slot_ids)):
            stream = generator("module", instance.host_seed, slot, 0)
            population.germinate(env, slot, blueprint, BlendAlgorithm.ADD, stream)


if __name__ == "__main__":
    secure()
    sys.exit(main())
