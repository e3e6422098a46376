"""Episodes of several controllers on the same held-out hosts, with the policy frozen.

Axis legend: E = environments (one held-out host each).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from esper.config.errors import RunError
from esper.controllers import Controller, ControllerContext, Static, Tuning, build_controller, is_users, tunables
from esper.controllers.guarded import decide, start_anew
from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.observations import Observation
from esper.envs.records import EpisodeRecord
from esper.envs.twins import TwinCache
from esper.experiment.build import Experiment
from esper.growth.actions import OP_NAMES
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.controller_names import LEARNED, RANDOM, SCHEDULE, SCHEDULE_BEST, SCHEDULE_PER_FAMILY
from esper.runtime.rng import derive_seed
from esper.telemetry.counters import OpCounts
from esper.telemetry.recording import TimelineRecorder
from esper.telemetry.timeline import EpisodeTimeline

Progress = Callable[[str, int, int], None]

RUN_SEED = 0
"""Run seed of every evaluation: all controllers, and those of all runs, meet the same hosts in the same order."""

ENOUGH_DECISIONS = 32
"""Number of decisions by which a random controller must have germinated: it misses each chance with probability 1/2 at
most.
"""


class NeverGrewError(RunError):
    """A control that should grow germinated nothing on any held-out host, so that a comparison with it would
    mislead.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one controller that has played every held-out host once.

    Attributes:
        name: name of the controller.
        episodes: one record per host, in the order of environments and ranks.
        ops: counts of its ops.
        wall_seconds: seconds of playing all of them, on the slowest rank.
        timeline: one of its episodes: the first with a kept module, else the first without a crash, else the first, up
            to its crash.
    """

    name: str
    episodes: tuple[EpisodeRecord, ...]
    ops: OpCounts
    wall_seconds: float
    timeline: EpisodeTimeline

    @classmethod
    def merged(cls, parts: Sequence[Outcome]) -> Outcome:
        """Merge all ranks' shares of the held-out hosts."""
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
        """Return the unscaled returns, ``float64 [E]``."""
        return torch.tensor([episode.episode_return for episode in self.episodes], dtype=torch.float64)


def play(
    controller: Controller, env: GrowthEnv, progress: Callable[[int, int], None], name: str | None = None
) -> Outcome:
    """Play one episode in every environment under a controller.

    An environment whose host crashes starts another episode, which is not counted.

    Args:
        controller: decides in every environment.
        env: held-out hosts.
        progress: called with (epochs done, epochs).
        name: name in tables and pictures; default: the controller's own.
    """
    name = controller.name if name is None else name
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
        name=name,
        episodes=episodes,
        ops=ops,
        wall_seconds=perf_counter() - began,
        timeline=timelines.timeline(env, shown, name),
    )


def _start(controller: Controller, env: GrowthEnv, which: Tensor) -> Observation:
    """Start episodes in the environments ``which: bool [E]``; plant the modules of a static network."""
    observation = env.reset(which)
    start_anew(controller, which)
    if isinstance(controller, Static):
        observation = env.plant({number: controller.modules[number] for number in which.nonzero().flatten().tolist()})
    return observation


def compare(
    experiment: Experiment,
    policy: GrowthPolicy,
    normaliser: Normaliser,
    twins: TwinCache | None,
    progress: Progress,
    tuning: Tuning | None = None,
    learned: Callable[[GrowthEnv, Outcome], None] | None = None,
) -> list[Outcome]:
    """Play every configured controller on the same held-out instances, spread over the ranks.

    Args:
        experiment: names the controllers and the number of hosts.
        policy, normaliser: parts of the learned controller.
        twins: curves of never-grown twins.
        progress: called with (controller, done, total).
        tuning: parameters of tuned controls.
        learned: called with this rank's hosts after the learned controller has played on them.

    Returns:
        Results of all ranks on the first one, in the configured order of controllers; an empty list on the others.

    Raises:
        ValueError: an ingredient of a controller is missing.
        NeverGrewError: a control that should grow did not.
    """
    evaluation, ranks = experiment.config.evaluation, experiment.ranks
    pool = experiment.pool(evaluation.split, evaluation.num_hosts)
    share = experiment.share(evaluation.num_hosts)
    if twins is not None:
        twins.require_together(pool, ranks)
    context = _context(experiment, pool, policy, normaliser, tuning)
    outcomes: dict[str, Outcome] = {}
    # The learned controller first, because static_final trains its final networks.
    for name in sorted(evaluation.controllers, key=lambda name: name != LEARNED):
        env = experiment.env(share, pool, twins, run_seed=RUN_SEED, measure_test=True)
        controller = build_controller(name, context)
        # By the name that was asked for: another registered controller may be of the same class.
        own = play(controller, env, lambda done, of, name=name: progress(name, done, of), name)  # type: ignore[misc]
        if name == LEARNED:
            context = replace(context, learned_kept=[episode.kept for episode in own.episodes])
            if learned is not None:
                learned(env, own)
        # On every rank, so that all fail together.
        germinated = sum(episode.num_germinated for episode in own.episodes)
        counts, ops = zip(*ranks.all_gather((germinated, own.ops)), strict=True)
        require_growth(name, sum(counts), OpCounts.merged(ops), tuning)
        parts = ranks.gather(own)
        if parts:
            outcomes[name] = Outcome.merged(parts)
    return [outcomes[name] for name in evaluation.controllers if name in outcomes]


def _context(
    experiment: Experiment, pool: InstancePool, policy: GrowthPolicy, normaliser: Normaliser, tuning: Tuning | None
) -> ControllerContext:
    """Collect the ingredients of controllers, for this rank's share of the held-out hosts."""
    evaluation = experiment.config.evaluation
    share = experiment.share(evaluation.num_hosts)
    return ControllerContext(
        num_envs=len(share),
        space=experiment.space,
        seed=derive_seed("evaluation", experiment.config.seed, experiment.ranks.rank),
        schedule=experiment.schedule(),
        policy=policy,
        normaliser=normaliser,
        deterministic=evaluation.deterministic,
        greedy=evaluation.greedy,
        families=[pool.draw(RUN_SEED, number, 0).family for number in share],
        tuning=tuning,
    )


def try_own_controllers(experiment: Experiment, names: Sequence[str]) -> None:
    """Build the controllers that users have registered, to find errors before a run rather than after it.

    Raises:
        ValueError: one cannot be built.
    """
    own = [name for name in names if is_users(name)]
    if own:
        pool = experiment.pool(experiment.config.evaluation.split, experiment.config.evaluation.num_hosts)
        context = _context(experiment, pool, *experiment.policy(), tuning=None)
        for name in own:
            build_controller(name, context)


def require_growth(name: str, num_germinated: int, ops: OpCounts, tuning: Tuning | None) -> None:
    """Refuse a control that should grow but has germinated nothing on any host.

    ``never`` and the learned controllers are exempt; so is a tuned control if tuning found that no schedule pays (an
    empty best plan). ``random`` must have had some decisions to make.

    Args:
        name: the control.
        num_germinated: number of modules created in all of its hosts.
        ops: counts of its ops.
        tuning: source of its parameters.

    Raises:
        NeverGrewError: nothing was germinated; the message counts the ops that were attempted instead.
    """
    grows = name in (RANDOM, SCHEDULE) or (tuning is not None and name in tunables())
    if num_germinated or not grows or _may_not_grow(name, ops, tuning):
        return
    did = ", ".join(f"{op} {int(count)}" for op, count in zip(OP_NAMES, ops.attempted, strict=True) if count)
    raise NeverGrewError(
        f"the control {name!r} germinated nothing on any held-out host, so it was no rival but a second 'never'; "
        f"its actions: {did or 'none'}"
    )


def _may_not_grow(name: str, ops: OpCounts, tuning: Tuning | None) -> bool:
    if name == RANDOM:
        return int(ops.chosen.sum()) < ENOUGH_DECISIONS
    if name == SCHEDULE or tuning is None:
        return False
    if name == SCHEDULE_PER_FAMILY and name in tuning.found:
        return not any(tuning.found[name].values())
    return tuning.found.get(SCHEDULE_BEST) == ()
