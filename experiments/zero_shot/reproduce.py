"""Measure the shipped controller of ``digits_pays`` on hosts of other kinds, from the repository's root:
``python -m experiments.zero_shot.reproduce``.

Nothing is trained or tuned on them. The controller, the heuristic, and a best fixed plan and the best simple rule of
``digits_pays`` play the same held-out hosts of every kind. What is missing in ``outputs/zero_shot`` is played, a file
for each kind; then the table of README.md is renewed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import esper
from esper.blueprints import blueprint_ids
from esper.config import compose
from esper.controllers import Controller, Heuristic, HeuristicParameters, Never, PlannedGermination, Schedule
from esper.evaluation.play import RUN_SEED, play
from esper.experiment.build import Experiment, build_experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.files import write_atomic
from esper.runtime.rng import generator
from esper.runtime.terminal import say, secure
from esper.telemetry.statistics import crossed_bootstrap
from experiments.growth_pays.one_bit import OneBit
from experiments.tables import between_markers

SHIPPED = "digits_pays"
FOLDER = Path("outputs/zero_shot")
PAGE = Path(__file__).with_name("README.md")
RIVALS = {"schedule": "the plan", "one_bit": "the rule", "heuristic": "heuristic"}
HEAD = ("hosts", "learned", *(f"learned − {text}" for text in RIVALS.values()), "test %, learned", "never", "kept")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of hosts.

    Attributes:
        text: row of the table.
        words: configuration of the hosts.
    """

    text: str
    words: tuple[str, ...]


KINDS = {
    "same": Kind("of training, other seeds", ("+preset=digits_pays",)),
    "wide": Kind("twice as wide", ("+preset=digits_pays", "host.widths=[16,16,16]", "instances.alive_channels=4")),
    "short": Kind("25 epochs of 4 steps", ("+preset=digits_pays", "env.num_epochs=25", "env.steps_per_epoch=4")),
    "slow": Kind("a third of the learning rate", ("+preset=digits_pays", "host.lr=0.0033")),
    "deep": Kind(
        "eight blocks, five slots",
        ("+preset=digits_deep", "recipe=lean", "slots.max_seeds=1", "env.num_epochs=40", "reward.rent_weight=2.0"),
    ),
    "fashion": Kind("Fashion-MNIST", ("+preset=fashion_pays", "recipe=lean", "reward.rent_weight=2.0")),
}
"""Kinds of hosts; in the first four the faults are those of training, in ``fashion`` too."""

NUM_HOSTS = 64


def rivals(experiment: Experiment, num_hosts: int) -> dict[str, Controller]:
    """Build the controllers to compare with: all as they are on ``digits_pays``, but for the number of slots."""
    middle = len(experiment.slot_ids) // 2
    plan = [PlannedGermination(0, middle, blueprint_ids().index("conv_heavy"))]
    return {
        "schedule": Schedule([plan] * num_hosts),
        "one_bit": OneBit(reads=True),
        "heuristic": Heuristic(
            [HeuristicParameters()] * num_hosts, len(experiment.slot_ids), experiment.config.slots.max_seeds
        ),
        "never": Never(),
    }


def played(kind: Kind, num_hosts: int = NUM_HOSTS) -> dict[str, Any]:
    """Play all controllers on held-out hosts of a kind; return values for JSON."""
    words = (*kind.words, "env.mapping=matmul", f"evaluation.num_hosts={num_hosts}")
    experiment = build_experiment(compose(*words))
    pool = experiment.pool("held_out", num_hosts)
    twins = experiment.twins(num_hosts, lambda done, total: None)
    learned = esper.load_controller(SHIPPED, num_hosts, num_slots=len(experiment.slot_ids))
    found: dict[str, Any] = {}
    for name, controller in {"learned": learned, **rivals(experiment, num_hosts)}.items():
        env = experiment.env(range(num_hosts), pool, twins, run_seed=RUN_SEED, measure_test=True)
        records = sorted(
            play(controller, env, lambda done, total: None).episodes, key=lambda record: record.instance.index
        )
        found[name] = {
            "returns": [record.episode_return for record in records],
            "test": [record.test_accuracy for record in records],
            "kept": [record.num_fossilized for record in records],
        }
        say(f"{kind.text}, {name}: {torch.tensor(found[name]['returns']).mean():+.1f}")
    return {**found, "families": [record.instance.family for record in records]}


def row(kind: Kind, found: Mapping[str, Any]) -> str:
    """Format a kind of hosts as a row of the table."""
    learned = found["learned"]
    returns = torch.tensor(learned["returns"], dtype=torch.float64)
    gaps = [returns - torch.tensor(found[name]["returns"], dtype=torch.float64) for name in RIVALS]
    accuracies = [f"{100 * torch.tensor(found[name]['test']).mean():.1f}" for name in ("learned", "never")]
    kept = f"{torch.tensor(learned['kept'], dtype=torch.float64).mean():.2f}"
    cells = [kind.text, *(_interval(each, found["families"]) for each in (returns, *gaps)), *accuracies, kept]
    return f"| {' | '.join(cells)} |"


def _interval(values: Tensor, families: list[str]) -> str:
    found = crossed_bootstrap(values[None], families, generator=generator("zero-shot"))
    return f"{found.estimate:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def main() -> None:
    """Play what is missing, and write the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---|" * (len(HEAD) - 1)]
    for name, kind in KINDS.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            write_atomic(path, json.dumps(played(kind), indent=1) + "\n")
        lines.append(row(kind, json.loads(path.read_text(encoding="utf-8"))))
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "table", "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
