"""Measure single plans: ``python -m experiments.growth_pays.landscape``, from the repository's root.

Put every blueprint into every slot at the first epoch, and into all slots, on training instances of ``digits_pays``,
and write the tables of LANDSCAPE.md: gain and test accuracy of each plan, by host family.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from esper.blueprints import blueprint_ids
from esper.config import compose
from esper.controllers import Controller, PlannedGermination, Schedule, Static, everywhere
from esper.envs.instances import InstancePool
from esper.evaluation.play import play
from esper.experiment.build import Experiment, build_experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.files import write_atomic
from esper.runtime.provenance import environment_info
from esper.runtime.terminal import secure
from experiments.tables import between_markers

HERE = Path(__file__).parent
FOUND = Path("outputs/growth_pays/landscape.json")
RENTS = (1.0, 2.0, 3.0)
EVERYWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of one plan on one instance, before rent."""

    slot: int
    blueprint: str
    family: str
    gain: float
    test: float
    added: int
    host: int

    @property
    def plan(self) -> tuple[int, str]:
        """Slot and blueprint."""
        return self.slot, self.blueprint

    def net(self, rent: float) -> float:
        """Return after rent, in points."""
        return self.gain - rent * self.added / self.host


def measure(num_instances: int) -> list[Row]:
    """Run all plans on the first instances of the training pool."""
    config = compose(
        "+preset=digits_pays", "env.mapping=matmul", "reward.rent_weight=0", f"instances.num_train={num_instances}"
    )
    experiment = build_experiment(config)
    instances = experiment.pool("train", num_instances).instances
    height = config.trainer.num_envs
    twins = experiment.twins(height, lambda done, total: None)
    env = experiment.env(range(height), InstancePool(instances), twins, run_seed=0, measure_test=True)
    fitting = experiment.compatible
    plans = [(slot, blueprint) for slot, blueprint in fitting.nonzero().tolist()]
    plans += [(EVERYWHERE, blueprint) for blueprint in fitting.any(0).nonzero().flatten().tolist()]
    rows: list[Row] = []
    for kind in (False, True):
        pairs = [(plan, instance) for plan in plans for instance in instances if (plan[0] == EVERYWHERE) is kind]
        for begin in range(0, len(pairs), height):
            real = pairs[begin : begin + height]
            filled = [real[number % len(real)] for number in range(height)]
            env.pool = InstancePool(tuple(instance for _, instance in filled), assigned=True)
            outcome = play(_controller(experiment, [plan for plan, _ in filled], kind), env, lambda done, total: None)
            sizes = env.population.num_host_parameters().tolist()
            for ((slot, blueprint), instance), episode, host in zip(real, outcome.episodes, sizes, strict=False):
                assert episode.test_accuracy is not None
                rows.append(
                    Row(
                        slot=slot,
                        blueprint=blueprint_ids()[blueprint],
                        family=instance.family,
                        gain=episode.episode_return,
                        test=100 * episode.test_accuracy,
                        added=episode.added_parameters,
                        host=host,
                    )
                )
    return rows


def _controller(experiment: Experiment, plans: Sequence[tuple[int, int]], planted: bool) -> Controller:
    if planted:
        return Static([everywhere(blueprint_ids()[blueprint], experiment.compatible) for _, blueprint in plans], "all")
    return Schedule([(PlannedGermination(0, slot, blueprint),) for slot, blueprint in plans])


def table(rows: Sequence[Row]) -> str:
    """Format gain and test accuracy of every plan, by family."""
    families = sorted({row.family for row in rows})
    cells: dict[tuple[tuple[int, str], str], list[Row]] = defaultdict(list)
    for row in rows:
        cells[row.plan, row.family].append(row)
    lines = [f"| slot, blueprint | added | {' | '.join(families)} |", "|" + "---|" * (len(families) + 2)]
    for plan in dict.fromkeys(row.plan for row in rows):
        found = [cells[plan, family] for family in families]
        numbers = [f"{_mean([r.gain for r in cell]):+.1f} / {_mean([r.test for r in cell]):.1f}" for cell in found]
        where = "everywhere" if plan[0] == EVERYWHERE else f"slot {plan[0]}"
        lines.append(f"| {where}, {plan[1]} | {found[0][0].added} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def choices(rows: Sequence[Row]) -> str:
    """Format, for each rent, the returns of the best plans, with instances weighted as in training."""
    lines = ["| rent | best plan for all | best plan of each family | best everywhere, by return |", "|" + "---|" * 4]
    single = [row for row in rows if row.slot != EVERYWHERE]
    full = [row for row in rows if row.slot == EVERYWHERE]
    for rent in RENTS:
        best, everywhere_best = _best(single, rent), _best(full, rent)
        by_family = [
            row
            for family in sorted({row.family for row in rows})
            for row in _best([row for row in single if row.family == family], rent)
        ]
        shown = [
            f"{_mean([row.net(rent) for row in found]):.1f} points, test {_mean([row.test for row in found]):.1f} %, "
            f"{_mean([row.added for row in found]):,.0f} parameters"
            for found in (best, by_family, everywhere_best)
        ]
        names = (
            "everywhere" if row.slot == EVERYWHERE else f"slot {row.slot}" for row in (best[0], everywhere_best[0])
        )
        first, last = names
        lines.append(
            f"| {rent:g} | {best[0].blueprint} {first}: {shown[0]} | {shown[1]} "
            f"| {everywhere_best[0].blueprint} {last}: {shown[2]} |"
        )
    return "\n".join(lines)


def _best(rows: Sequence[Row], rent: float) -> list[Row]:
    """Return the rows of the plan with the highest mean."""
    by_plan: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_plan[row.plan].append(row)
    return max(by_plan.values(), key=lambda own: _mean([row.net(rent) for row in own]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Measure whatever is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=32, help="training instances, the pool's first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if not FOUND.exists():
        FOUND.parent.mkdir(parents=True, exist_ok=True)
        rows = measure(options.instances)
        record = {
            "instances": options.instances,
            "git_sha": environment_info()["git_sha"],
            "rows": [*map(asdict, rows)],
        }
        write_atomic(FOUND, json.dumps(record))
    record = json.loads(FOUND.read_text())
    rows = [Row(**row) for row in record["rows"]]
    page = HERE / "LANDSCAPE.md"
    text = between_markers(page.read_text(), "plans", table(rows))
    text = between_markers(text, "choices", choices(rows))
    facts = f"Commit `{record['git_sha'][:9]}`, {record['instances']} training instances, one pass each."
    page.write_text(between_markers(text, "facts", facts))


if __name__ == "__main__":
    secure()
    main()
