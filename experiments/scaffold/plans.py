"""Measure a module alone and beside another: ``python -m experiments.scaffold.plans``, from the repository's root.

Put one 3x3 convolution into each slot at the first epoch, and into each pair of slots, on training instances of the
study, and write the table of README.md.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import mean

import torch

from esper.blueprints import blueprint_ids
from esper.config import compose
from esper.controllers import PlannedGermination, Schedule
from esper.envs.instances import InstancePool
from esper.evaluation.play import play
from esper.experiment.build import build_experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.provenance import environment_info
from esper.runtime.terminal import secure
from experiments.scaffold.reproduce import STUDY, WORDS
from experiments.tables import between_markers

BLUEPRINT = "conv_light"
NUM_INSTANCES = 16


def measure() -> dict[tuple[tuple[int, ...], str], tuple[float, float]]:
    """Return gain in points before rent and test accuracy in %, by (slots with a module, host family)."""
    config = compose(*WORDS, "reward.rent_weight=0", f"instances.num_train={NUM_INSTANCES}")
    experiment = build_experiment(config)
    instances = experiment.pool("train", NUM_INSTANCES).instances
    height, num_slots = config.trainer.num_envs, len(experiment.slot_ids)
    blueprint = blueprint_ids().index(BLUEPRINT)
    plans = [*combinations(range(num_slots), 1), *combinations(range(num_slots), 2)]
    pairs = [(plan, instance) for plan in plans for instance in instances]
    twins = experiment.twins(height, lambda done, total: None)
    env = experiment.env(range(height), InstancePool(instances), twins, run_seed=0, measure_test=True)
    found = defaultdict(list)
    for begin in range(0, len(pairs), height):
        real = pairs[begin : begin + height]
        filled = [real[number % len(real)] for number in range(height)]
        env.pool = InstancePool(tuple(instance for _, instance in filled), assigned=True)
        steps = [tuple(PlannedGermination(0, slot, blueprint) for slot in plan) for plan, _ in filled]
        outcome = play(Schedule(steps), env, lambda done, total: None)
        for (plan, instance), episode in zip(real, outcome.episodes, strict=False):
            assert episode.test_accuracy is not None
            found[plan, instance.family].append((episode.episode_return, 100 * episode.test_accuracy))
    return {key: (mean(gain for gain, _ in rows), mean(test for _, test in rows)) for key, rows in found.items()}


def main() -> None:
    """Measure, and write the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    found = measure()
    families = sorted({family for _, family in found})
    lines = [f"| {BLUEPRINT} in | {' | '.join(families)} |", "|" + "---|" * (len(families) + 1)]
    for plan in dict.fromkeys(plan for plan, _ in found):
        cells = [found[plan, family] for family in families]
        numbers = [f"{gain:+.1f} / {test:.1f}" for gain, test in cells]
        lines.append(f"| slot {' and '.join(map(str, plan))} | {' | '.join(numbers)} |")
    facts = f"Commit `{environment_info()['git_sha'][:9]}`, {NUM_INSTANCES} training instances, one pass each."
    page = Path(STUDY.page)
    page.write_text(between_markers(page.read_text(), "plans", "\n".join([*lines, "", facts])))


if __name__ == "__main__":
    secure()
    main()
