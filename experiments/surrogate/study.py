"""What keeps PPO on one plan? ``python -m experiments.surrogate.study``, from the root of the repository.

Trains what is not in ``outputs/surrogate`` yet, then prints the table of README.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import torch

from esper.actions import Blueprint
from esper.lifecycle import GrowthRules, Stage
from esper.rng import generator
from experiments.surrogate.growth import (
    FAMILIES,
    NUM_EPOCHS,
    NUM_SLOTS,
    REWARD_SCALE,
    GrowthWorld,
    Instances,
    fixed_return,
    oracle_return,
)
from experiments.surrogate.learner import Learner, play, recipe
from experiments.surrogate.simulated import SimulatedEnv

RUNS = Path("outputs/surrogate")
SEEDS = (0, 1, 2)
MORE_SEEDS = (3, 4)
CLOSER = ("pointer", "pointer, critic=state", "flat", "flat, critic=state", "flat, lr=5e-4")
"""Settings that get more seeds."""
ENV_EPOCHS = 24_000
NUM_TRAIN, NUM_HELD_OUT = 48, 66
RULES = GrowthRules(max_developing=3, max_seeds=1, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)

FLAT = "policy.slot_head=flat"
SETTINGS: dict[str, tuple[str, ...]] = {
    "pointer": (),
    "pointer, critic=state": ("policy.critic=state",),
    "pointer, critic=state, lr=5e-4": ("policy.critic=state", "ppo.lr=5e-4"),
    "flat": (FLAT,),
    "flat, lr=5e-4": (FLAT, "ppo.lr=5e-4"),
    "flat, lr=3e-4": (FLAT, "ppo.lr=3e-4"),
    "flat, update_epochs=4": (FLAT, "ppo.update_epochs=4"),
    "flat, target_kl=0.02": (FLAT, "ppo.target_kl=0.02"),
    "flat, num_minibatches=2": (FLAT, "ppo.num_minibatches=2"),
    "flat, gae_lambda=0.9": (FLAT, "ppo.gae_lambda=0.9"),
    "flat, gae_lambda=1.0": (FLAT, "ppo.gae_lambda=1.0"),
    "flat, ent_coef=0.01": (FLAT, "ppo.ent_coef=0.01"),
    "flat, ent_coef=0.05": (FLAT, "ppo.ent_coef=0.05"),
    "flat, slot multiplier 1": (FLAT, "ppo.entropy_multipliers.slot=1.0"),
    "flat, critic=state": (FLAT, "policy.critic=state"),
    "flat, ratio=per_head": (FLAT, "ppo.ratio=per_head"),
    "flat, conditional_heads=false": (FLAT, "policy.conditional_heads=false"),
    "flat, num_envs=32": (FLAT, "trainer.num_envs=32"),
    "flat, num_envs=48": (FLAT, "trainer.num_envs=48"),
}
"""Name to overrides of the digits preset."""


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
    """One training run: looks at held-out instances, and per iteration return and explained variance."""

    checks: list[Check]
    points: list[float]
    explained_variance: list[float | None]


def environment(
    instances: Instances, num_envs: int, stream: torch.Generator, *, in_order: bool = False
) -> SimulatedEnv:
    """Simulated growth under the digits preset's rules."""
    world = GrowthWorld(instances, num_envs, stream, in_order=in_order)
    return SimulatedEnv(world, num_envs, NUM_SLOTS, rules=RULES, num_epochs=NUM_EPOCHS)


def look(learner: Learner, held_out: Instances, env_epochs: int) -> Check:
    """Play one greedy episode on every held-out instance."""
    env = environment(held_out, len(held_out.family), generator("held out"), in_order=True)
    points = float(play(env, learner.policy, learner.normaliser).mean()) / REWARD_SCALE
    fossilized = env.state.stage == Stage.FOSSILIZED
    slots = torch.cat([fossilized, ~fossilized.any(1, keepdim=True)], 1).long()
    kept = {name: slots[held_out.family == number].sum(0).tolist() for number, name in enumerate(FAMILIES)}
    counts = env.state.blueprint[fossilized].bincount(minlength=len(Blueprint)).tolist()
    blueprints = {Blueprint(index).name.lower(): count for index, count in enumerate(counts) if count}
    return Check(env_epochs=env_epochs, points=points, kept=kept, blueprints=blueprints)


def train(overrides: Sequence[str], seed: int, env_epochs: int = ENV_EPOCHS) -> Run:
    """Learn for a number of environment epochs, and look at held-out instances in quarters."""
    num_envs = recipe(*overrides).config.trainer.num_envs
    per_iteration = num_envs * NUM_EPOCHS
    num_iterations = env_epochs // per_iteration
    anneal = round(30 * 24 / num_envs)  # the preset's, in environment epochs
    how = recipe(*overrides, f"ppo.anneal_iterations={anneal}")
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    learner = Learner(environment(Instances.draw(NUM_TRAIN, "train"), num_envs, generator("growth", seed)), how, seed)
    run = Run(checks=[], points=[], explained_variance=[])
    looks = {round(quarter * num_iterations / 4) for quarter in (1, 2, 3, 4)}
    for iteration in range(num_iterations):
        metrics = learner.iterate(iteration)
        run.points.append((metrics["return"] or 0.0) / REWARD_SCALE)
        run.explained_variance.append(metrics["losses/explained_variance"])
        if iteration + 1 in looks:
            run.checks.append(look(learner, held_out, (iteration + 1) * per_iteration))
    return run


def seeds(name: str) -> tuple[int, ...]:
    """Run seeds of a setting."""
    return SEEDS + MORE_SEEDS if name in CLOSER else SEEDS


def load(name: str, seed: int) -> Run:
    """A finished run."""
    record = json.loads(path(name, seed).read_text())
    return Run(**record | {"checks": [Check(**check) for check in record["checks"]]})


def path(name: str, seed: int) -> Path:
    """Where a run is kept."""
    return RUNS / f"{name.replace(' ', '_')}-{seed}.json"


def row(name: str, oracle: float) -> str:
    """One setting as a Markdown table row, from the runs of it that are finished."""
    runs = [load(name, seed) for seed in seeds(name) if path(name, seed).exists()]
    if not runs:
        return f"| {name} | — | — | — | — | — |"
    halves, ends = [run.checks[1] for run in runs], [run.checks[-1] for run in runs]
    thirds = [[value for value in run.explained_variance[-len(run.points) // 3 :] if value is not None] for run in runs]
    cells = [
        name,
        f"{100 * mean(check.points for check in halves) / oracle:.0f}",
        f"{100 * mean(check.points for check in ends) / oracle:.0f}",
        f"{sum(check.one_plan for check in halves)}, {sum(check.one_plan for check in ends)} of {len(runs)}",
        f"{mean(mean(third) for third in thirds):.2f}",
        ", ".join(f"{100 * check.points / oracle:.0f}{' *' if check.one_plan else ''}" for check in ends),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Train the named settings, or all of them; then print the table."""
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or SETTINGS:
        for seed in seeds(name):
            if not path(name, seed).exists():
                path(name, seed).write_text(json.dumps(asdict(train(SETTINGS[name], seed))))
    held_out = Instances.draw(NUM_HELD_OUT, "held_out")
    oracle = oracle_return(held_out)
    print(f"oracle {oracle:.1f} points, best fixed plan {100 * fixed_return(held_out) / oracle:.0f} % of it\n")
    print(
        "| setting | %, half-way | %, end | one plan, half-way and end | explained variance | %, by seed (* one plan) |"
    )
    print("|---|---|---|---|---|---|")
    print("\n".join(row(name, oracle) for name in SETTINGS))


if __name__ == "__main__":
    main()
