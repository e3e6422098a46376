"""Playing of candidates on training instances: many pairs at once, each in its own environment.

Axis legend: E = environments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from esper.controllers import Controller
from esper.envs.instances import Instance, InstancePool
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.evaluation.play import play
from esper.evaluation.tuning.halving import C, Pair
from esper.experiment.build import Experiment
from esper.runtime.rng import generator


class Arena:
    """Player of (candidate, instance) pairs, in stacks of the size that the learned controller was trained in.

    Args:
        experiment: experiment, whose ranks share the pairs.
        twins: twins for stacks of a rank's share of ``trainer.num_envs``; ``None`` if the reward uses no twins.
        instances: instances by number.

    Attributes:
        num_epochs: environment epochs of one pair. Pairs that are repeated to fill a stack are not counted.
    """

    def __init__(self, experiment: Experiment, twins: TwinCache | None, instances: Sequence[Instance]) -> None:
        self.instances = tuple(instances)
        self._ranks = experiment.ranks
        height = len(experiment.share(experiment.config.trainer.num_envs))
        if twins is not None:
            twins.require_together(self.instances, self._ranks)
        self._env = experiment.env(range(height), InstancePool(self.instances), twins, run_seed=0, measure_test=False)
        self.num_epochs = self._env.num_epochs

    def episodes(
        self,
        build: Callable[[Sequence[C]], Controller],
        pairs: Sequence[Pair[C]],
        progress: Callable[[int, int], None],
    ) -> list[EpisodeRecord]:
        """Return each pair's episode; the same on all ranks, all of which must call this.

        Args:
            build: builds a controller that plays one candidate in each environment.
            pairs: candidates and numbers of instances.
            progress: called with (done, total) pairs.
        """
        rank, size = self._ranks.rank, self._ranks.size
        own = pairs[rank::size]
        found: list[EpisodeRecord] = []
        for begin in range(0, len(own), self._env.num_envs):
            progress(begin * size, len(pairs))
            found += self._play(build, own[begin : begin + self._env.num_envs])
        progress(len(pairs), len(pairs))
        parts = [iter(part) for part in self._ranks.all_gather(found)]
        return [next(parts[number % size]) for number in range(len(pairs))]

    def _play(self, build: Callable[[Sequence[C]], Controller], pairs: Sequence[Pair[C]]) -> Sequence[EpisodeRecord]:
        rows = [pairs[row % len(pairs)] for row in range(self._env.num_envs)]
        self._env.pool = InstancePool(tuple(self.instances[number] for _, number in rows), assigned=True)
        outcome = play(build([candidate for candidate, _ in rows]), self._env, lambda done, total: None)
        return outcome.episodes[: len(pairs)]


def arranged(pool: Sequence[Instance], seed: int) -> list[Instance]:
    """Shuffle the instances by a seed so that every prefix still has about the pool's mix of families."""
    members: dict[str, list[Instance]] = {}
    for instance in pool:
        members.setdefault(instance.family, []).append(instance)
    shuffled = {family: iter(_shuffled(found, seed, family)) for family, found in members.items()}
    return [next(shuffled[instance.family]) for instance in pool]


def _shuffled(instances: list[Instance], seed: int, family: str) -> list[Instance]:
    order = torch.randperm(len(instances), generator=generator("tuning", "instances", seed, family))
    return [instances[position] for position in order.tolist()]
