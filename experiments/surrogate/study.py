"""Compare PPO settings on the surrogate: ``python -m experiments.surrogate.study``, from the root of the repository.

Train whatever is missing in ``outputs/surrogate``, then renew the tables of README.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from unittest.mock import patch

import torch

from esper.algorithms.buffer import RolloutBatch
from esper.experiment.acting import growth_rules
from esper.growth import Stage
from esper.growth.actions import Blueprint
from esper.population.probes import PROBE_NAMES
from esper.runtime.files import write_atomic
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
"""Environment epochs of a run, three eighths of the preset's."""
NUM_TRAIN, NUM_HELD_OUT = 56, 64
RECENT_EPISODES = 96

BLUEPRINT_MULTIPLIER = "ppo.entropy_multipliers.blueprint={}"

PROBES = "observation.slot_probes=[{}]"
FORCED_WAITS = "forced WAITs count"
BEFORE = ("ppo.ratio=joint", "ppo.lr=5e-4", "ppo.anneal_lr=false", BLUEPRINT_MULTIPLIER.format(1.5))
"""Overrides for four parts of an earlier recipe of digits_pays."""
RECIPE_BEFORE = (*BEFORE, "ppo.anneal_iterations=70")
"""Overrides for the whole earlier recipe of digits_pays."""

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
"""Settings by table, each with a name and overrides of the preset; the first setting is the reference of its table."""


@contextmanager
def forced_waits_count() -> Iterator[None]:
    """Count steps with WAIT as the only legal op in the loss and in the statistics of advantages."""
    counted = property(lambda batch: batch.masks.op.sum(-1).clamp(min=2))
    with patch.object(RolloutBatch, "num_legal_ops", counted):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A greedy evaluation on held-out instances.

    Attributes:
        env_epochs: environment epochs of training so far.
        points: mean return.
        sampled: mean return of the latest 96 training episodes.
        kept: for each family, how often slot 0, 1, 2 or none was kept.
        blueprints: how often each blueprint was kept, by name.
    """

    env_epochs: int
    points: float
    sampled: float
    kept: dict[str, list[int]]
    blueprints: dict[str, int]

    @property
    def one_plan(self) -> bool:
        """Return whether the slot kept most often is the same in every family that kept any."""
        counts = [row[:NUM_SLOTS] for row in self.kept.values()]
        return len({row.index(max(row)) for row in counts if sum(row)}) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: evaluations on held-out instances, and explained variance per iteration."""

    checks: list[Check]
    explained_variance: list[float | None]


def environment(
    instances: Instances, num_envs: int, stream: torch.Generator, how: Recipe, *, in_order: bool = False
) -> SimulatedEnv:
    """Build simulated growth under a recipe's rules."""
    world = GrowthWorld(instances, num_envs, stream, how.config, in_order=in_order)
    return SimulatedEnv(world, num_envs, NUM_SLOTS, rules=growth_rules(how.config), num_epochs=NUM_EPOCHS)


def held_out_env(held_out: Instances, how: Recipe) -> SimulatedEnv:
    """Build the environment of evaluations, one instance each."""
    return environment(held_out, len(held_out.family), generator("held out"), how, in_order=True)


def look(learner: Learner, held_out: Instances, env_epochs: int, sampled: float) -> Check:
    """Play one greedy episode on every held-out instance."""
    env = held_out_env(held_out, learner.recipe)
    points = float(play(env, learner.policy, learner.normaliser).mean()) / learner.recipe.config.reward.scale
    return check(env, held_out, env_epochs, points, sampled)


def check(env: SimulatedEnv, held_out: Instances, env_epochs: int, points: float, sampled: float) -> Check:
    """Describe an evaluation by what its environment has at the end of the episodes."""
    fossilized = env.state.stage == Stage.FOSSILIZED
    slots = torch.cat([fossilized, ~fossilized.any(1, keepdim=True)], 1).long()
    kept = {name: slots[held_out.family == number].sum(0).tolist() for number, name in enumerate(FAMILIES)}
    counts = env.state.blueprint[fossilized].bincount(minlength=len(Blueprint)).tolist()
    blueprints = {Blueprint(index).name.lower(): count for index, count in enumerate(counts) if count}
    return Check(env_epochs=env_epochs, points=points, sampled=sampled, kept=kept, blueprints=blueprints)


def train(overrides: Sequence[str], seed: int, env_epochs: int = ENV_EPOCHS) -> Run:
    """Train for a number of environment epochs, and evaluate on held-out instances after every quarter.

    Schedules are the preset's, scaled to the length of the run.
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
    run, returns = Run(checks=[], explained_variance=[]), list[float]()
    recent = max(1, round(RECENT_EPISODES * NUM_EPOCHS / per_iteration))
    looks = {round(quarter * num_iterations / 4) for quarter in (1, 2, 3, 4)}
    for iteration in range(num_iterations):
        metrics = learner.iterate(iteration)
        run.explained_variance.append(metrics["losses/explained_variance"])
        returns.append((metrics["return"] or 0.0) * NUM_EPOCHS / num_steps / how.config.reward.scale)
        if iteration + 1 in looks:
            run.checks.append(look(learner, held_out, (iteration + 1) * per_iteration, mean(returns[-recent:])))
    return run


def load(group: str, name: str, seed: int) -> Run:
    """Load a finished run."""
    record = json.loads(path(group, name, seed).read_text())
    return Run(**record | {"checks": [Check(**check) for check in record["checks"]]})


def path(group: str, name: str, seed: int) -> Path:
    """Return the file of a run."""
    return RUNS / group / f"{name.replace(' ', '_')}-{seed}.json"


def row(group: str, name: str, oracle: float) -> str:
    """Format one setting as a Markdown table row, compared with the first of its group."""
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
    """Format the difference to the first setting of a group, in percentage points, paired by run seed, with standard
    error.
    """
    base = next(iter(GROUPS[group]))
    if name == base:
        return ""
    own, other = ([load(group, setting, seed).checks[look].points for seed in SEEDS] for setting in (name, base))
    gaps = [100 * (a - b) / oracle for a, b in zip(own, other, strict=True)]
    return f"{mean(gaps):+.0f} ± {stdev(gaps) / len(gaps) ** 0.5:.0f}"


def table(group: str, oracle: float) -> str:
    """Format a table of all settings of a group."""
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


def make(group: str, name: str, seed: int, start: Callable[[], Run]) -> None:
    """Make the run of a setting unless it exists."""
    own = path(group, name, seed)
    if own.exists():
        return
    own.parent.mkdir(parents=True, exist_ok=True)
    print(f"{group}: {name}, run seed {seed}", flush=True)
    write_atomic(own, json.dumps(asdict(start())))


def make_setting(group: str, name: str, seed: int) -> None:
    """Train a setting of a table here unless its run exists."""
    with forced_waits_count() if name == FORCED_WAITS else nullcontext():
        make(group, name, seed, lambda: train(GROUPS[group][name], seed))


def main() -> None:
    """Train the settings of the named groups, or of all, then write their tables."""
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
                make_setting(group, name, seed)
        text = between_markers(PAGE.read_text(encoding="utf-8"), group, table(group, oracle))
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
