"""Controllers side by side on the same held-out hosts, policy frozen.

Axis legend: E = environments (one held-out host each).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.actions import OP_WAIT
from esper.build import Laboratory
from esper.controllers import Controller, ControllerContext, build_controller
from esper.envs.growth import GrowthEnv
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.policy import GrowthPolicy, Normaliser
from esper.recording import TimelineRecorder
from esper.rng import derive_seed
from esper.tallies import OpCounts
from esper.telemetry.summary import ControllerSummary, Mean, mean_sem
from esper.telemetry.timeline import EpisodeTimeline

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One controller on all held-out hosts.

    Attributes:
        name: the controller.
        episodes: one record per host, in the order of environments and ranks.
        ops: what it did.
        timeline: one of its episodes: the first in which something was kept, else the first that did not crash, else
            the first, up to its crash.
    """

    name: str
    episodes: tuple[EpisodeRecord, ...]
    ops: OpCounts
    timeline: EpisodeTimeline

    @classmethod
    def merged(cls, parts: Sequence[Outcome]) -> Outcome:
        """All ranks' shares of the held-out hosts together."""
        whole = [part for part in parts if not all(episode.crashed for episode in part.episodes)]
        keeping = [part for part in whole if any(e.num_fossilized and not e.crashed for e in part.episodes)]
        return cls(
            name=parts[0].name,
            episodes=tuple(episode for part in parts for episode in part.episodes),
            ops=OpCounts.merged([part.ops for part in parts]),
            timeline=(keeping or whole or list(parts))[0].timeline,
        )

    def returns(self) -> Tensor:
        """``float64 [E]`` unscaled returns."""
        return torch.tensor([episode.episode_return for episode in self.episodes], dtype=torch.float64)

    def summary(self) -> ControllerSummary:
        """Row of the closing table."""

        def column(values: Sequence[float]) -> Mean | None:
            return mean_sem(torch.tensor(values, dtype=torch.float64))

        share = self.ops.choice_share()
        return ControllerSummary(
            name=self.name,
            num_hosts=len(self.episodes),
            episode_return=mean_sem(self.returns()),
            val_accuracy=column([episode.val_accuracy for episode in self.episodes]),
            test_accuracy=column(
                [episode.test_accuracy for episode in self.episodes if episode.test_accuracy is not None]
            ),
            added_parameters=column([episode.added_parameters for episode in self.episodes]),
            wait_share=None if share is None else Mean(float(share[OP_WAIT]), None),
            num_fossilized=column([episode.num_fossilized for episode in self.episodes]),
        )


def play(controller: Controller, env: GrowthEnv, progress: Callable[[int, int], None]) -> Outcome:
    """One episode of every environment under a controller.

    An environment whose host crashes starts another episode, which is not counted.
    """
    observation = env.reset()
    controller.reset(torch.ones(env.num_envs, dtype=torch.bool))
    first: dict[int, EpisodeRecord] = {}
    ops, timelines = OpCounts(), TimelineRecorder()
    for epoch in range(env.num_epochs):
        progress(epoch, env.num_epochs)
        actions = controller.act(env.view(observation))
        result = env.step(actions)
        ops.add(observation, actions, result.applied.success)
        timelines.add(env, actions, result)
        for episode in result.episodes:
            first.setdefault(episode.environment, episode)
        observation = result.observation
        if epoch + 1 < env.num_epochs and result.terminated.any():
            observation = env.reset(result.terminated)
            controller.reset(result.terminated)
    progress(env.num_epochs, env.num_epochs)
    episodes = tuple(first[environment] for environment in range(env.num_envs))
    whole = [episode for episode in episodes if not episode.crashed]
    kept = [episode for episode in whole if episode.num_fossilized]
    shown = (kept or whole or episodes)[0]
    return Outcome(
        name=controller.name,
        episodes=episodes,
        ops=ops,
        timeline=timelines.timeline(env, shown, controller.name),
    )


def compare(
    laboratory: Laboratory, policy: GrowthPolicy, normaliser: Normaliser, twins: TwinCache | None, progress: Progress
) -> list[Outcome]:
    """Every configured controller on the same held-out instances, spread over the ranks.

    Returns:
        What all ranks found, on the first one; nothing on the others.
    """
    evaluation, ranks = laboratory.config.evaluation, laboratory.ranks
    pool = laboratory.pool("held_out", evaluation.num_hosts)
    share = laboratory.share(evaluation.num_hosts)
    if twins is not None:
        twins.require_together(pool, ranks)
    context = ControllerContext(
        num_envs=len(share),
        num_slots=len(laboratory.slot_ids),
        seed=derive_seed("evaluation", laboratory.config.seed, ranks.rank),
        schedule=laboratory.schedule(),
        policy=policy,
        normaliser=normaliser,
        deterministic=evaluation.deterministic,
    )
    outcomes = []
    for name in evaluation.controllers:
        env = laboratory.env(share, pool, twins, run_seed=0, measure_test=True)
        controller = build_controller(name, context)
        own = play(controller, env, lambda done, of, name=name: progress(name, done, of))  # type: ignore[misc]
        parts = ranks.gather(own)
        if parts:
            outcomes.append(Outcome.merged(parts))
    return outcomes


def paired_difference(a: Outcome, b: Outcome) -> Mean | None:
    """Mean and standard error over hosts of the difference in return, the same hosts for both."""
    return mean_sem(a.returns() - b.returns())
