"""What keeps PPO on one plan? ``python -m experiments.surrogate.study``, from the root of the repository.

Trains what is not in ``outputs/surrogate`` yet, then renews the tables of README.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from unittest.mock import patch

import torch

from esper.experiment.build import growth_rules
from esper.growth import Stage
from esper.growth.actions import Blueprint
from esper.population.probes import PROBE_NAMES
from esper.ppo.buffer import RolloutBatch
from esper.runtime.rng import generator
from esper.runtime.terminal import secure
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

PROBES = "observation.slot_probes=[{}]"
FORCED_WAITS = "forced WAITs count"
BEFORE = ("ppo.ratio=joint", "ppo.lr=5e-4", "ppo.anneal_lr=false", BLUEPRINT_MULTIPLIER.format(1.5))
"""Four parts of an earlier recipe of digits_pays."""
RECIPE_BEFORE = (*BEFORE, "ppo.anneal_iterations=70")
"""That recipe, whole."""

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "now": {
        "the preset": (),
        "schedules end with the run": ("ppo.anneal_iterations=80",),
        "all four as before": BEFORE,
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
    },
    "seen": {
        "the preset": (),
        FORCED_WAITS: (),
        "no slot probes": (PROBES.format(""),),
        **{
            f"all probes but {name}": (PROBES.format(",".join(other for other in PROBE_NAMES if other != name)),)
            for name in PROBE_NAMES
        },
    },
    "before": {
        "the recipe before": RECIPE_BEFORE,
        "slot_head=flat": (*RECIPE_BEFORE, "policy.slot_head=flat"),
        "critic=state": (*RECIPE_BEFORE, "policy.critic=state"),
        "conditional_heads=false": (*RECIPE_BEFORE, "policy.conditional_heads=false"),
        "ratio=per_head": (*RECIPE_BEFORE, "ppo.ratio=per_head"),
        "gamma=0.995": (*RECIPE_BEFORE, "ppo.gamma=0.995"),
        "gae_lambda=0.9": (*RECIPE_BEFORE, "ppo.gae_lambda=0.9"),
        "gae_lambda=1": (*RECIPE_BEFORE, "ppo.gae_lambda=1.0"),
        "num_steps=8": (*RECIPE_BEFORE, "trainer.num_steps=8"),
        "lr=1e-3": (*RECIPE_BEFORE, "ppo.lr=1e-3"),
        "reward.scale=0.02": (*RECIPE_BEFORE, "reward.scale=0.02"),
        "ent_coef=0.01": (*RECIPE_BEFORE, "ppo.ent_coef=0.01"),
        "ent_coef=0.05": (*RECIPE_BEFORE, "ppo.ent_coef=0.05"),
        "ent_coef not annealed": (*RECIPE_BEFORE, "ppo.ent_coef_final=0.02"),
        "slot multiplier 1": (*RECIPE_BEFORE, "ppo.entropy_multipliers.slot=1.0"),
        "blueprint multiplier 3": (*RECIPE_BEFORE, BLUEPRINT_MULTIPLIER.format(3.0)),
    },
}
"""Name of a table to its settings, each a name and overrides of the preset; the others are compared with the first."""


@contextmanager
def forced_waits_count() -> Iterator[None]:
    """Steps at which WAIT is all that is legal count in the loss, and in the statistics of advantages, like all."""
    counted = property(lambda batch: batch.masks.op.sum(-1).clamp(min=2))
    with patch.object(RolloutBatch, "num_legal_ops", counted):
        yield


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


def load(group: str, name: str, seed: int) -> Run:
    """A finished run."""
    record = json.loads(path(group, name, seed).read_text())
    return Run(**record | {"checks": [Check(**check) for check in record["checks"]]})


def path(group: str, name: str, seed: int) -> Path:
    """Where a run is kept."""
    return RUNS / group / f"{name.replace(' ', '_')}-{seed}.json"


def row(group: str, name: str, oracle: float) -> str:
    """One setting as a Markdown table row, beside the first of its group."""
    runs = [load(group, name, seed) for seed in SEEDS]
    halves, ends = [run.checks[1] for run in runs], [run.checks[-1] for run in runs]
    last = [run.explained_variance[-len(run.explained_variance) // 3 :] for run in runs]
    variances = [mean(value for value in values if value is not None) for values in last]
    cells = [
        name,
        f"{100 * mean(check.points for check in halves) / oracle:.0f}",
        difference(group, name, oracle, 1),
        f"{100 * mean(check.points for check in ends) / oracle:.0f}",
        difference(group, name, oracle, -1),
        f"{sum(check.one_plan for check in halves)}, {sum(check.one_plan for check in ends)} of {len(runs)}",
        f"{mean(variances):.2f}",
        ", ".join(f"{100 * check.points / oracle:.0f}{' *' if check.one_plan else ''}" for check in ends),
    ]
    return "| " + " | ".join(cells) + " |"


def difference(group: str, name: str, oracle: float, look: int) -> str:
    """To the first of a group at a look, in percentage points, paired by run seed, with its standard error."""
    base = next(iter(GROUPS[group]))
    if name == base:
        return ""
    own, other = ([load(group, setting, seed).checks[look].points for seed in SEEDS] for setting in (name, base))
    gaps = [100 * (a - b) / oracle for a, b in zip(own, other, strict=True)]
    return f"{mean(gaps):+.0f} ± {stdev(gaps) / len(gaps) ** 0.5:.0f}"


def table(group: str, oracle: float) -> str:
    """All settings of a group."""
    heads = (
        "setting",
        "%, half-way",
        "− the first",
        "%, end",
        "− the first",
        "one plan, half-way and end",
        "explained variance",
        "%, by seed (* one plan)",
    )
    rows = [row(group, name, oracle) for name in GROUPS[group]]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])


def make(group: str, name: str, seed: int) -> None:
    """Train a setting, unless it is there."""
    own = path(group, name, seed)
    if own.exists():
        return
    own.parent.mkdir(parents=True, exist_ok=True)
    print(f"{group}: {name}, run seed {seed}", flush=True)
    with forced_waits_count() if name == FORCED_WAITS else nullcontext():
        run = train(GROUPS[group][name], seed)
    own.write_text(json.dumps(asdict(run)))


def main() -> None:
    """Train the settings of the named groups, or of all; then write their tables."""
    parser = argparse.ArgumentParser(description="Train settings of PPO on simulated growth, and write the tables.")
    parser.add_argument(
        "groups", nargs="*", metavar="group", help=f"tables to make: {', '.join(GROUPS)} (default: all)"
    )
    chosen = parser.parse_args().groups or list(GROUPS)
    for group in chosen:
        if group not in GROUPS:
            parser.error(f"group {group!r} is unknown; choose from {', '.join(GROUPS)}")
    torch.set_num_threads(1)
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    oracle = oracle_return(held_out)
    share = 100 * fixed_return(held_out) / oracle
    facts = f"Oracle {oracle:.1f} points; the best single plan comes to {share:.0f} % of it."
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "facts", facts), encoding="utf-8")
    for group in chosen:
        for name in GROUPS[group]:
            for seed in SEEDS:
                make(group, name, seed)
        text = between_markers(PAGE.read_text(encoding="utf-8"), group, table(group, oracle))
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
