"""Controllers side by side on the same held-out hosts, policy frozen.

Axis legend: E = environments (one held-out host each).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from esper.config.errors import RunError
from esper.controllers import CONTROLLERS, TUNED, Controller, ControllerContext, Static, Tuning, build_controller
from esper.controllers.guarded import decide, start_anew
from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.observations import Observation
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.experiment.build import Laboratory
from esper.growth.actions import OP_NAMES, OP_WAIT
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.rng import derive_seed
from esper.runtime.user_code import is_ours
from esper.telemetry.counters import OpCounts
from esper.telemetry.recording import TimelineRecorder
from esper.telemetry.summary import ControllerSummary, Mean, mean_sem
from esper.telemetry.timeline import EpisodeTimeline

Progress = Callable[[str, int, int], None]

RUN_SEED = 0
"""Of every evaluation: all controllers, and those of all runs, meet the same hosts in the same order."""

ENOUGH_DECISIONS = 32
"""Decisions after which a random controller has germinated: it misses each chance with probability 1/2 at most."""


class NeverGrewError(RunError):
    """A control that is there to grow germinated nothing on any held-out host: comparing with it would flatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One controller on all held-out hosts.

    Attributes:
        name: the controller.
        episodes: one record per host, in the order of environments and ranks.
        ops: what it did.
        wall_seconds: that playing all of them took, on the slowest rank.
        timeline: one of its episodes: the first in which something was kept, else the first that did not crash, else
            the first, up to its crash.
    """

    name: str
    episodes: tuple[EpisodeRecord, ...]
    ops: OpCounts
    wall_seconds: float
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
            wall_seconds=max(part.wall_seconds for part in parts),
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
            val_bits=column([episode.val_bits for episode in self.episodes if episode.val_bits is not None]),
            test_bits=column([episode.test_bits for episode in self.episodes if episode.test_bits is not None]),
            added_parameters=column([episode.added_parameters for episode in self.episodes]),
            wait_share=None if share is None else Mean(float(share[OP_WAIT]), None),
            num_fossilized=column([episode.num_fossilized for episode in self.episodes]),
        )


def play(controller: Controller, env: GrowthEnv, progress: Callable[[int, int], None]) -> Outcome:
    """One episode of every environment under a controller.

    An environment whose host crashes starts another episode, which is not counted.
    """
    began = perf_counter()
    observation = _start(controller, env, torch.ones(env.num_envs, dtype=torch.bool))
    first: dict[int, EpisodeRecord] = {}
    ops, timelines = OpCounts(), TimelineRecorder()
    for epoch in range(env.num_epochs):
        progress(epoch, env.num_epochs)
        actions = decide(controller, env.view(observation))
        result = env.step(actions)
        ops.add(observation, actions, result.applied.success)
        timelines.add(env, actions, result)
        for episode in result.episodes:
            first.setdefault(episode.environment, episode)
        observation = result.observation
        if epoch + 1 < env.num_epochs and result.terminated.any():
            observation = _start(controller, env, result.terminated)
    progress(env.num_epochs, env.num_epochs)
    episodes = tuple(first[environment] for environment in range(env.num_envs))
    whole = [episode for episode in episodes if not episode.crashed]
    kept = [episode for episode in whole if episode.num_fossilized]
    shown = (kept or whole or episodes)[0]
    return Outcome(
        name=controller.name,
        episodes=episodes,
        ops=ops,
        wall_seconds=perf_counter() - began,
        timeline=timelines.timeline(env, shown, controller.name),
    )


def _start(controller: Controller, env: GrowthEnv, which: Tensor) -> Observation:
    """Begin the episodes of some environments, ``which: bool [E]``; a static network has its modules at once."""
    observation = env.reset(which)
    start_anew(controller, which)
    if isinstance(controller, Static):
        observation = env.plant({number: controller.modules[number] for number in which.nonzero().flatten().tolist()})
    return observation


def compare(
    laboratory: Laboratory,
    policy: GrowthPolicy,
    normaliser: Normaliser,
    twins: TwinCache | None,
    progress: Progress,
    tuning: Tuning | None = None,
) -> list[Outcome]:
    """Every configured controller on the same held-out instances, spread over the ranks.

    Args:
        laboratory: names the controllers and the number of hosts.
        policy, normaliser: of the learned controller.
        twins: curves of never-grown twins.
        progress: called with (controller, done, total).
        tuning: parameters of the controls that need some.

    Returns:
        What all ranks found, on the first one, in the order in which controllers are named; nothing on the others.

    Raises:
        ValueError: a controller needs what is not there.
        NeverGrewError: a control that is there to grow did not.
    """
    evaluation, ranks = laboratory.config.evaluation, laboratory.ranks
    pool = laboratory.pool("held_out", evaluation.num_hosts)
    share = laboratory.share(evaluation.num_hosts)
    if twins is not None:
        twins.require_together(pool, ranks)
    context = _context(laboratory, pool, policy, normaliser, tuning)
    outcomes: dict[str, Outcome] = {}
    # The learned controller first: static_final trains what it ended with.
    for name in sorted(evaluation.controllers, key=lambda name: name != "learned"):
        env = laboratory.env(share, pool, twins, run_seed=RUN_SEED, measure_test=True)
        controller = build_controller(name, context)
        own = play(controller, env, lambda done, of, name=name: progress(name, done, of))  # type: ignore[misc]
        if name == "learned":
            context = replace(context, learned_kept=[episode.kept for episode in own.episodes])
        # On every rank, so that all fail together.
        germinated = sum(episode.num_germinated for episode in own.episodes)
        counts, ops = zip(*ranks.all_gather((germinated, own.ops)), strict=True)
        require_growth(name, sum(counts), OpCounts.merged(ops), tuning)
        parts = ranks.gather(own)
        if parts:
            outcomes[name] = Outcome.merged(parts)
    return [outcomes[name] for name in evaluation.controllers if name in outcomes]


def _context(
    laboratory: Laboratory, pool: InstancePool, policy: GrowthPolicy, normaliser: Normaliser, tuning: Tuning | None
) -> ControllerContext:
    """Parts that controllers are built from, for this rank's share of the held-out hosts."""
    evaluation = laboratory.config.evaluation
    share = laboratory.share(evaluation.num_hosts)
    return ControllerContext(
        num_envs=len(share),
        slot_ids=laboratory.slot_ids,
        compatible=laboratory.compatible,
        max_seeds=laboratory.max_seeds,
        seed=derive_seed("evaluation", laboratory.config.seed, laboratory.ranks.rank),
        schedule=laboratory.schedule(),
        policy=policy,
        normaliser=normaliser,
        deterministic=evaluation.deterministic,
        families=[pool.draw(RUN_SEED, number, 0).family for number in share],
        tuning=tuning,
    )


def try_own_controllers(laboratory: Laboratory, names: Sequence[str]) -> None:
    """Build the controllers that users have added, to know before a run whether they can be built after it.

    Raises:
        ValueError: one cannot.
    """
    own = [name for name in names if not is_ours(CONTROLLERS[name])]
    if own:
        pool = laboratory.pool("held_out", laboratory.config.evaluation.num_hosts)
        context = _context(laboratory, pool, *laboratory.policy(), tuning=None)
        for name in own:
            build_controller(name, context)


def require_growth(name: str, num_germinated: int, ops: OpCounts, tuning: Tuning | None) -> None:
    """Refuse a control that is there to grow and has germinated nothing on any host.

    ``never`` and what the learned controller decided are what they are; so is a tuned control where tuning found that
    no schedule pays (an empty best plan). ``random`` must have had some decisions to make.

    Args:
        name: the control.
        num_germinated: modules that were ever put into its hosts, over all of them.
        ops: what it did.
        tuning: what its parameters come from.

    Raises:
        NeverGrewError: says what it did instead.
    """
    grows = name in ("random", "schedule") or (tuning is not None and name in TUNED)
    if num_germinated or not grows or _may_not_grow(name, ops, tuning):
        return
    did = ", ".join(f"{op} {int(count)}" for op, count in zip(OP_NAMES, ops.attempted, strict=True) if count)
    raise NeverGrewError(
        f"the control {name!r} germinated nothing on any held-out host, so it was no rival but a second 'never'; "
        f"its actions: {did or 'none'}"
    )


def _may_not_grow(name: str, ops: OpCounts, tuning: Tuning | None) -> bool:
    if name == "random":
        return int(ops.chosen.sum()) < ENOUGH_DECISIONS
    if name == "schedule" or tuning is None:
        return False
    if name == "schedule_per_family" and tuning.schedule_per_family is not None:
        return not any(tuning.schedule_per_family.values())
    return tuning.schedule_best == ()


def paired_difference(a: Outcome, b: Outcome) -> Mean | None:
    """Mean and standard error over hosts of the difference in return, the same hosts for both."""
    return mean_sem(a.returns() - b.returns())
