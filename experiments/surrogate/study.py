"""What keeps PPO on one plan? ``python -m experiments.surrogate.study``, from the root of the repository.

Trains what is not in ``outputs/surrogate`` yet, then renews the table of README.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from esper.actions import Blueprint
from esper.build import growth_rules
from esper.lifecycle import Stage
from esper.rng import generator
from experiments.surrogate.growth import (
    FAMILIES,
    NUM_EPOCHS,
    NUM_SLOTS,
    PRESET,
    GrowthWorld,
    Instances,
    fixed_return,
    oracle_return,
)
from experiments.surrogate.learner import Learner, Recipe, play, recipe
from experiments.surrogate.simulated import SimulatedEnv
from experiments.tables import between_markers

RUNS = Path("outputs/surrogate")
PAGE = Path(__file__).with_name("README.md")
SEEDS = range(5)
ENV_EPOCHS = 28_800
"""Three eighths of what the preset trains for."""
NUM_TRAIN, NUM_HELD_OUT = 56, 64

BLUEPRINT_MULTIPLIER = "ppo.entropy_multipliers.blueprint={}"

SETTINGS: dict[str, tuple[str, ...]] = {
    "the preset": (),
    "all four as before": ("ppo.ratio=joint", "ppo.lr=5e-4", "ppo.anneal_lr=false", BLUEPRINT_MULTIPLIER.format(1.5)),
    "ratio=joint": ("ppo.ratio=joint",),
    "lr not annealed": ("ppo.anneal_lr=false",),
    "lr=5e-4": ("ppo.lr=5e-4",),
    "lr=1e-3": ("ppo.lr=1e-3",),
    "blueprint multiplier 1.5": (BLUEPRINT_MULTIPLIER.format(1.5),),
    "blueprint multiplier 5": (BLUEPRINT_MULTIPLIER.format(5.0),),
    "norm_adv=false": ("ppo.norm_adv=false",),
    "target_kl=null": ("ppo.target_kl=null",),
    "num_envs=12": ("trainer.num_envs=12",),
    "num_envs=48": ("trainer.num_envs=48",),
}
"""Name to overrides of the preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A greedy look at held-out instances.

    Attributes:
        env_epochs: of training so far.
        points: mean return.
        kept: family to how often slot 0, 1, 2 or none was kept.
        blueprints: blueprint name to how often it was kept.
    """

    env_epochs: int
    points: float
    kept: dict[str, list[int]]
    blueprints: dict[str, int]

    @property
    def one_plan(self) -> bool:
        """The slot kept most often is the same in every family in which one was kept at all."""
        counts = [row[:NUM_SLOTS] for row in self.kept.values()]
        return len({row.index(max(row)) for row in counts if sum(row)}) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: looks at held-out instances, and explained variance per iteration."""

    checks: list[Check]
    explained_variance: list[float | None]


def environment(
    instances: Instances, num_envs: int, stream: torch.Generator, how: Recipe, *, in_order: bool = False
) -> SimulatedEnv:
    """Simulated growth under a recipe's rules."""
    world = GrowthWorld(instances, num_envs, stream, how.config, in_order=in_order)
    return SimulatedEnv(world, num_envs, NUM_SLOTS, rules=growth_rules(how.config), num_epochs=NUM_EPOCHS)


def look(learner: Learner, held_out: Instances, env_epochs: int) -> Check:
    """Play one greedy episode on every held-out instance."""
    env = environment(held_out, len(held_out.family), generator("held out"), learner.recipe, in_order=True)
    points = float(play(env, learner.policy, learner.normaliser).mean()) / learner.recipe.config.reward.scale
    fossilized = env.state.stage == Stage.FOSSILIZED
    slots = torch.cat([fossilized, ~fossilized.any(1, keepdim=True)], 1).long()
    kept = {name: slots[held_out.family == number].sum(0).tolist() for number, name in enumerate(FAMILIES)}
    counts = env.state.blueprint[fossilized].bincount(minlength=len(Blueprint)).tolist()
    blueprints = {Blueprint(index).name.lower(): count for index, count in enumerate(counts) if count}
    return Check(env_epochs=env_epochs, points=points, kept=kept, blueprints=blueprints)


def train(overrides: Sequence[str], seed: int, env_epochs: int = ENV_EPOCHS) -> Run:
    """Learn for a number of environment epochs, and look at held-out instances in quarters.

    Schedules are those of the preset, as shares of the run.
    """
    whole = recipe(*overrides, preset=PRESET).config
    num_envs, num_steps = whole.trainer.num_envs, whole.trainer.num_steps or NUM_EPOCHS
    per_iteration = num_envs * num_steps
    num_iterations = env_epochs // per_iteration
    anneal = round(num_iterations * whole.ppo.anneal_iterations / whole.trainer.num_iterations)
    length = (f"trainer.num_iterations={num_iterations}", f"ppo.anneal_iterations={anneal}")
    how = recipe(*overrides, *length, preset=PRESET)
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    env = environment(Instances.draw(NUM_TRAIN, "train"), num_envs, generator("growth", seed), how)
    learner = Learner(env, how, seed, num_steps=num_steps)
    run = Run(checks=[], explained_variance=[])
    looks = {round(quarter * num_iterations / 4) for quarter in (1, 2, 3, 4)}
    for iteration in range(num_iterations):
        run.explained_variance.append(learner.iterate(iteration)["losses/explained_variance"])
        if iteration + 1 in looks:
            run.checks.append(look(learner, held_out, (iteration + 1) * per_iteration))
    return run


def load(name: str, seed: int) -> Run:
    """A finished run."""
    record = json.loads(path(name, seed).read_text())
    return Run(**record | {"checks": [Check(**check) for check in record["checks"]]})


def path(name: str, seed: int) -> Path:
    """Where a run is kept."""
    return RUNS / f"{name.replace(' ', '_')}-{seed}.json"


def row(name: str, oracle: float) -> str:
    """One setting as a Markdown table row, from the runs of it that are finished."""
    runs = {seed: load(name, seed) for seed in SEEDS if path(name, seed).exists()}
    if not runs:
        return f"| {name} | – | – | – | – | – | – | – |"
    halves, ends = [run.checks[1] for run in runs.values()], [run.checks[-1] for run in runs.values()]
    last = [run.explained_variance[-len(run.explained_variance) // 3 :] for run in runs.values()]
    variances = [mean(value for value in values if value is not None) for values in last]
    cells = [
        name,
        f"{100 * mean(check.points for check in halves) / oracle:.0f}",
        difference(runs, oracle, 1),
        f"{100 * mean(check.points for check in ends) / oracle:.0f}",
        difference(runs, oracle, -1),
        f"{sum(check.one_plan for check in halves)}, {sum(check.one_plan for check in ends)} of {len(runs)}",
        f"{mean(variances):.2f}",
        ", ".join(f"{100 * check.points / oracle:.0f}{' *' if check.one_plan else ''}" for check in ends),
    ]
    return "| " + " | ".join(cells) + " |"


def difference(runs: dict[int, Run], oracle: float, look: int) -> str:
    """At a look, to the preset, in percentage points, paired by run seed, with the standard error over them."""
    base = next(iter(SETTINGS))
    both = [seed for seed in runs if path(base, seed).exists()]
    if len(both) < 2:
        return "–"
    own, preset = (
        [run.checks[look].points for run in found]
        for found in ([runs[seed] for seed in both], [load(base, seed) for seed in both])
    )
    gaps = [100 * (a - b) / oracle for a, b in zip(own, preset, strict=True)]
    error = stdev(gaps) / len(gaps) ** 0.5
    return "" if not any(gaps) else f"{mean(gaps):+.0f} ± {error:.0f}"


def table(oracle: float) -> str:
    """All settings of which there are runs."""
    heads = (
        "setting",
        "%, half-way",
        "− the preset",
        "%, end",
        "− the preset",
        "one plan, half-way and end",
        "explained variance",
        "%, by seed (* one plan)",
    )
    rows = [row(name, oracle) for name in SETTINGS]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])


def main() -> None:
    """Train the named settings, or all of them; then write the table."""
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or SETTINGS:
        for seed in SEEDS:
            if not path(name, seed).exists():
                path(name, seed).write_text(json.dumps(asdict(train(SETTINGS[name], seed))))
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    oracle = oracle_return(held_out)
    share = 100 * fixed_return(held_out) / oracle
    facts = f"Oracle {oracle:.1f} points; the best single plan comes to {share:.0f} % of it."
    text = between_markers(PAGE.read_text(encoding="utf-8"), "facts", facts)
    PAGE.write_text(between_markers(text, "table", table(oracle)), encoding="utf-8")


if __name__ == "__main__":
    main()
