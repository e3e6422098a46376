"""Measure what there is to win by growing: ``python -m experiments.digits_mixed.grown``, from the repository's root.

The same plans as in :mod:`experiments.digits_mixed.landscape`, but grown: a module germinates in each epoch, learns in
isolation, is blended in, and is kept as soon as it may be. Writes what the best plan for all hosts, rules and bandits
earn so, and how much the best plan of each host would.

Axis legend: E = hosts side by side, S = slots.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from esper.blueprints import blueprint_ids
from esper.envs.instances import InstancePool
from esper.evaluation.play import RUN_SEED, play
from esper.experiment.build import Experiment
from esper.runtime.devices import keep_freed_memory
from esper.runtime.terminal import secure
from experiments.digits_mixed.bandit import NOTHING, PlanController
from experiments.digits_mixed.landscape import (
    GRADIENTS,
    HERE,
    Measured,
    Study,
    ceilings,
    readers,
    table,
    without_looking,
)
from experiments.digits_mixed.returns import Networks, Pair, Score
from experiments.hosts import again
from experiments.tables import between_markers

FOUND = Path("outputs/digits_mixed/grown.jsonl")


class Grown(Networks):
    """Trainer of hosts that grow a plan in the environment, with a file of what it has measured.

    Another run of a pair has another order of the same data. Plans are grown at whatever price a host has.
    """

    sections = ("task", "host", "env", "slots", "counterfactual", "observation")

    def __init__(self, experiment: Experiment, path: Path, height: int) -> None:
        super().__init__(experiment, path, height)
        self._twins = experiment.twins(height, lambda done, total: None)

    def _train(self, pairs: Sequence[Pair]) -> list[Score]:
        height = self._population.num_envs
        rows = [pairs[row % len(pairs)] for row in range(height)]
        pool = InstancePool(tuple(again(pair.instance, pair.run) for pair in rows), assigned=True)
        env = self._experiment.env(range(height), pool, self._twins, run_seed=RUN_SEED, measure_test=True)
        plans = torch.tensor([[NOTHING if own is None else blueprint_ids().index(own) for own in p.plan] for p in rows])
        grower = PlanController(height, plans.shape[1], lambda view, which: plans[which])
        episodes = play(grower, env, lambda done, total: None).episodes[: len(pairs)]
        sizes = env.population.num_host_parameters()[: len(pairs)].tolist()
        found = []
        for episode, size in zip(episodes, sizes, strict=True):
            share, rent = episode.added_parameters / size, episode.instance.rent(env.settings.rent_weight)
            alone = float(self._twins[episode.instance].points[-1])
            points, test = alone + episode.episode_return + rent * share, 100 * (episode.test_accuracy or 0.0)
            found.append(Score(points=points, early=(), test=test, share=share))
        return found


def main() -> None:
    """Measure whatever is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=40, help="hosts to judge on, the split's first")
    parser.add_argument("--split", choices=("validation", "held_out"), default="validation")
    parser.add_argument("--episodes", type=int, default=300, help="random plans on training hosts for the bandits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    study = Study(FOUND, words=["env.mapping=matmul"], trainer=Grown, height=24)
    measured = Measured.of(study, study.hosts(options.split, options.hosts), options.episodes)
    blind = [replace(part, probes=part.probes[..., GRADIENTS:]) for part in (measured.world, measured.known)]
    found = without_looking(measured) | readers(study, measured.world, measured.known)
    found |= {f"{name}, from gradients only": earned for name, earned in readers(study, *blind).items()}
    found |= ceilings(study, measured)
    page = HERE / "README.md"
    text = between_markers(page.read_text(), "grown", table(found, study.prices))
    page.write_text(between_markers(text, "grown facts", measured.facts(study, options.split)))


if __name__ == "__main__":
    secure()
    main()
