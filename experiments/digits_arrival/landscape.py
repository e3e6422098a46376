"""Measure what the time of growing is worth: ``python -m experiments.digits_arrival.landscape``, from the root.

Play fixed schedules, rules that know when classes arrive, and a rule that sees it in the validation loss, on validation
hosts of ``digits_arrival``, each with several orders of the same data, and write the table of README.md.

Axis legend: R = orders of the data, P = plans, N = hosts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config import compose
from esper.controllers.schedule import PlannedGermination, Schedule
from esper.envs.instances import Instance, InstancePool
from esper.envs.records import EnvView, EpisodeRecord
from esper.envs.twins import TwinCache
from esper.experiment.build import Experiment, build_experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.terminal import secure
from experiments.digits_arrival.rivals import MODULE, SLOT, grow_where_the_loss_has_risen
from experiments.hosts import again
from experiments.tables import between_markers

HERE = Path(__file__).parent
EVERY = 4
"""Epochs from one fixed schedule to the next."""

AFTER = (-4, 0, 1, 2, 4, 8)
JUMPS = (0.25, 1.0)
"""Rises of the validation loss, from one epoch to the next, at which a rule grows."""

CEILING = "best epoch of each host, another order of the data"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A time to grow: the epoch that ``start`` gives for a host, or the one after a jump of the validation loss."""

    name: str
    start: Callable[[Instance], int] | None = None
    jump: float = float("inf")


def plans(num_epochs: int) -> list[Plan]:
    """List all plans: fixed schedules, epochs after the arrival, jumps of the loss."""

    def fixed(epoch: int) -> Plan:
        return Plan(name=f"epoch {epoch}", start=lambda instance: epoch)

    def after(epochs: int) -> Plan:
        many = f"{abs(epochs)} epoch{'s' if abs(epochs) > 1 else ''}"
        name = "with the arrival" if not epochs else f"{many} {'after' if epochs > 0 else 'before'} it"
        return Plan(name=name, start=lambda instance: max(0, instance.arrival + epochs))

    return [
        *(fixed(epoch) for epoch in range(0, num_epochs - EVERY, EVERY)),
        *(after(epochs) for epochs in AFTER),
        *(Plan(name=f"once the loss has risen by {jump:g}", jump=jump) for jump in JUMPS),
    ]


class Timed(Schedule):
    """The schedule of each environment, or growth after the first epoch in which its validation loss rises enough.

    Args:
        rows: plan of each environment.
        instances: instance of each environment.
    """

    def __init__(self, rows: Sequence[Plan], instances: Sequence[Instance]) -> None:
        pairs = zip(rows, instances, strict=True)
        super().__init__([[PlannedGermination(p.start(i), SLOT, MODULE)] if p.start else [] for p, i in pairs])
        self._jumps = torch.tensor([plan.jump for plan in rows], dtype=torch.float64)

    def act(self, view: EnvView) -> torch.Tensor:
        actions = super().act(view)
        grow_where_the_loss_has_risen(actions, view, self._jumps)
        return actions


def returns(experiment: Experiment, rows: Sequence[Plan], hosts: Sequence[Instance]) -> tuple[Array, Array]:
    """Play each plan on each host, and return what they earn and the test accuracy in %, ``[P, N]`` each."""
    instances = [host for _ in rows for host in hosts]
    share, pool = range(len(instances)), InstancePool(tuple(instances), assigned=True)
    twins = TwinCache(experiment.loader, lambda: experiment.population(len(hosts)))
    env = experiment.env(share, pool, twins, run_seed=0, measure_test=True)
    timed = Timed([plan for plan in rows for _ in hosts], instances)
    observation = env.reset()
    records: list[EpisodeRecord] = []
    for _ in range(env.num_epochs):
        step = env.step(timed.act(env.view(observation)))
        observation = step.observation
        records += step.episodes
    records.sort(key=lambda record: record.environment)
    earned = np.array([record.episode_return for record in records])
    tested = np.array([100 * (record.test_accuracy or 0.0) for record in records])
    return earned.reshape(len(rows), len(hosts)), tested.reshape(len(rows), len(hosts))


def chosen_on_others(earned: Array) -> NDArray[np.int64]:
    """Return for each host the plan that earns most on the others, ``[N]``; ``earned: [R, P, N]``."""
    mean: Array = earned.mean(0)
    others: Array = mean.sum(1, keepdims=True) - mean
    return np.asarray(others.argmax(0))


def best_epochs(earned: Array) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Give each order of the data with the plan of each host, ``[N]``, that earns most in the other orders."""
    for run in range(len(earned)):
        yield run, np.delete(earned, run, axis=0).mean(0).argmax(0)


def rivals(rows: Sequence[Plan], values: Array, earned: Array) -> dict[str, Array]:
    """Return a value of each rival on each host, ``[N]``, its plans chosen by what they earn.

    Args:
        rows: the plans.
        values: ``[R, P, N]``, returns or another measure.
        earned: ``[R, P, N]``, returns.
    """
    hosts = np.arange(values.shape[2])
    groups = {
        "best fixed schedule": [n for n, plan in enumerate(rows) if plan.name.startswith("epoch")],
        "best number of epochs after the arrival": [
            n for n, plan in enumerate(rows) if plan.start and not plan.name.startswith("epoch")
        ],
        "best rule on the validation loss": [n for n, plan in enumerate(rows) if plan.start is None],
    }
    found = {plan.name: values[:, n].mean(0) for n, plan in enumerate(rows)}
    for name, group in groups.items():
        found[name] = values[:, group].mean(0)[chosen_on_others(earned[:, group]), hosts]
    found[CEILING] = np.mean([values[run, plan, hosts] for run, plan in best_epochs(earned)], axis=0)
    return found


def table(found: dict[str, Array], tested: dict[str, Array]) -> str:
    """Format what the rivals earn, and their differences to the best fixed schedule."""
    base = found["best fixed schedule"]
    lines = ["| grows | return | above the best fixed schedule | test % |", "|---|---|---|---|"]
    for name, earned in found.items():
        gap = earned - base
        error = gap.std(ddof=1) / len(gap) ** 0.5
        above = "" if earned is base else f"{gap.mean():+.1f} ± {error:.1f}"
        lines.append(f"| {name} | {earned.mean():+.1f} | {above} | {tested[name].mean():.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=16, help="hosts to judge on, the split's first")
    parser.add_argument("--split", choices=("validation", "held_out"), default="validation")
    parser.add_argument("--runs", type=int, default=2, help="orders of the data of each host, at least 2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    experiment = build_experiment(compose("+preset=digits_arrival", "env.mapping=grouped"))
    hosts, rows = experiment.pool(options.split, options.hosts).instances, plans(experiment.config.env.num_epochs)
    both = [returns(experiment, rows, [again(host, run) for host in hosts]) for run in range(options.runs)]
    earned, tested = (np.stack(part) for part in zip(*both, strict=True))
    text = table(rivals(rows, earned, earned), rivals(rows, tested, earned))
    noise = float((earned.var(axis=0, ddof=1)).mean() ** 0.5)
    facts = (
        f"{len(hosts)} {options.split.replace('_', '-')} hosts, {len(rows)} plans, {options.runs} orders of the data. "
        f"Another order moves the return of a plan on a host by {noise:.1f} points (standard deviation)."
    )
    page = HERE / "README.md"
    page.write_text(between_markers(between_markers(page.read_text(), "rivals", text), "landscape", facts))


if __name__ == "__main__":
    secure()
    main()
