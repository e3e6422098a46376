"""The loop: collect, update, log, checkpoint; then compare the learned controller with its controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console

from esper.build import Laboratory, build_laboratory, ppo_settings
from esper.checkpoint import save_checkpoint
from esper.closing import closing_report
from esper.comparison import compare
from esper.config import summary, to_plain, to_yaml
from esper.config.cli import refused
from esper.config.learning import Twin
from esper.config.root import Config
from esper.devices import intra_op_threads, keep_freed_memory
from esper.envs.growth import GrowthEnv
from esper.envs.twins import TwinCache
from esper.members import Member, describe
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.ppo import Metrics, RolloutBuffer, UpdateResult, linear_schedule, ppo_update
from esper.precision import policy_scaler
from esper.ranks import ALONE, Ranks
from esper.recording import IterationRecorder
from esper.rng import derive_seed, generator
from esper.rollout import Carry, collect
from esper.runs import RunFolder, run_status
from esper.tallies import IterationTally
from esper.telemetry.background import InBackground
from esper.telemetry.buffer import EventBuffer
from esper.telemetry.console import ConsoleLogger
from esper.telemetry.escalation import Escalation
from esper.telemetry.events import NonFiniteUpdate, RatioExplosion
from esper.telemetry.hub import Logger, TelemetryHub
from esper.telemetry.jsonl import EventsJsonl, MetricsJsonl


def train(config: Config, run_dir: Path, ranks: Ranks = ALONE) -> None:
    """Train a controller, compare it with its controls, and leave everything in ``run_dir``.

    Args:
        config: of the run, the same on every rank.
        run_dir: where the first rank writes.
        ranks: this process among those of the run, each with its share of the environments.

    Raises:
        RunFolderError: the folder already holds a run, or cannot be written.
        PeerLost: another rank has ended.
    """
    began = perf_counter()
    torch.set_num_threads(intra_op_threads(config.num_threads, ranks.local_size))
    keep_freed_memory()
    with refused(Config):
        laboratory = build_laboratory(config, ranks)
    config = laboratory.config  # with the mapping that was chosen
    members = describe(laboratory)
    folder = RunFolder.create(run_dir, to_yaml(config)) if ranks.is_first else RunFolder(run_dir)
    if ranks.is_first:
        _announce(laboratory, folder, members)
    events = None if ranks.is_first else EventBuffer()
    with run_status(folder, ranks.rank):
        with TelemetryHub(_loggers(config, folder) if events is None else [events], config.telemetry.level) as hub:
            trainer = Trainer(laboratory, folder, hub, events)
            trainer.run()
            outcomes = compare(
                laboratory,
                trainer.policy,
                trainer.normaliser,
                _evaluation_twins(laboratory, trainer, hub),
                lambda name, done, total: hub.stage(f"held-out hosts, {name}", done, total),
            )
        # Still part of the run: what it leaves behind must be there before it counts as finished.
        members = describe(laboratory, trainer.env.population)
        if ranks.is_first:
            closing_report(laboratory, folder, outcomes, members, wall_seconds=perf_counter() - began)


def _loggers(config: Config, folder: RunFolder) -> list[Logger]:
    """Files are written where the loop can tell that they were; what draws may take its time elsewhere."""
    console = ConsoleLogger(config.telemetry.console, config.trainer.num_iterations)
    return [MetricsJsonl(folder.metrics), EventsJsonl(folder.events), InBackground(console)]


def _announce(laboratory: Laboratory, folder: RunFolder, members: Sequence[Member]) -> None:
    if laboratory.config.telemetry.console == "off":
        return
    lines = [summary(laboratory.config), *map(str, members), *laboratory.choice.lines(), f"run folder {folder.path}"]
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _evaluation_twins(laboratory: Laboratory, trainer: Trainer, hub: TelemetryHub) -> TwinCache | None:
    """Twins stacked as high as the environments of the evaluation."""
    config = laboratory.config
    if config.reward.twin is Twin.none:
        return None
    share = laboratory.share(config.evaluation.num_hosts)
    if len(share) == trainer.env.num_envs:
        return trainer.twins
    return laboratory.twins(len(share), lambda done, total: hub.stage("never-grown twins, held-out hosts", done, total))


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds of one iteration on this rank, by what they went to; an update includes waiting for the other ranks."""

    rollout: float
    hosts: float
    update: float

    def metrics(self, num_epochs: int) -> dict[str, float | None]:
        """``time/control_share`` is everything but training and validating hosts, as a share of the iteration."""
        total = self.rollout + self.update
        return {
            "time/rollout": self.rollout,
            "time/hosts": self.hosts,
            "time/update": self.update,
            "time/control_share": 1.0 - self.hosts / total,
            "charts/SPS": num_epochs / total,
        }


class Trainer:
    """State of one rank of a run and its iterations.

    Args:
        laboratory: what environments share.
        folder: where the first rank puts checkpoints.
        hub: receives events and, on the first rank, metrics.
        events: keeps this rank's events until the first one takes them in; ``None`` on the first.

    Attributes:
        policy, normaliser: what is learned.
        twins: curves of never-grown twins of the training instances, ``None`` without twins.
        escalation: watches metrics, and decides how much telemetry is kept.
    """

    def __init__(
        self, laboratory: Laboratory, folder: RunFolder, hub: TelemetryHub, events: EventBuffer | None = None
    ) -> None:
        config, ranks = laboratory.config, laboratory.ranks
        self.config, self.ranks, self.folder, self.hub = config, ranks, folder, hub
        self.settings = ppo_settings(config)
        self.policy: GrowthPolicy
        self.normaliser: Normaliser
        self.policy, self.normaliser = laboratory.policy()
        if config.policy.compile:
            self.policy.compile()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.ppo.lr, eps=config.ppo.adam_eps)
        self.scaler = policy_scaler(laboratory.device, self.policy.autocast_dtype)
        share, num_steps = laboratory.share(config.trainer.num_envs), config.trainer.num_steps
        assert num_steps is not None, "nulls are resolved on loading"
        self.twins: TwinCache | None = None
        if config.reward.twin is Twin.cached:
            self.twins = laboratory.twins(len(share), lambda done, total: hub.stage("never-grown twins", done, total))
        pool = laboratory.pool("train", config.instances.num_train)
        if self.twins is not None:
            self.twins.require_together(pool, ranks)
        self.env: GrowthEnv = laboratory.env(share, pool, self.twins, run_seed=config.seed, measure_test=False)
        self.buffer = RolloutBuffer(
            len(share),
            num_steps,
            self.policy.num_features,
            self.policy.num_slots,
            self.policy.num_blueprints,
            self.policy.lstm_dim,
            laboratory.device,
        )
        self._events = events
        self.escalation = Escalation(hub.level, config.telemetry.escalation_iterations)
        actions = derive_seed("actions", config.seed, ranks.rank)
        self._sampling = torch.Generator(laboratory.device).manual_seed(actions)
        self._shuffling = generator("minibatches", config.seed, ranks.rank)

    def run(self) -> None:
        """All iterations."""
        carry = Carry(self.env.reset(), self.policy.initial_state(self.env.num_envs))
        num_iterations = self.config.trainer.num_iterations
        for iteration in range(1, num_iterations + 1):
            metrics = self.iterate(iteration, carry)
            if not self.ranks.is_first:
                continue
            self.hub.log_metrics(iteration, metrics)
            if iteration % self.config.trainer.checkpoint_every == 0 or iteration == num_iterations:
                self.save(iteration)

    def iterate(self, iteration: int, carry: Carry) -> Metrics:
        """Collect a rollout, update the policy, take in the observations."""
        ppo = self.config.ppo
        recorder = IterationRecorder(self.env, self.hub, iteration)
        skipped, non_finite = self.env.skipped_steps, self.env.non_finite
        host_seconds, began = self.env.host_seconds, perf_counter()
        raw = collect(self.env, self.policy, self.normaliser, self.buffer, carry, self._sampling, recorder)
        collected = perf_counter()
        ent_coef = linear_schedule(iteration - 1, ppo.ent_coef, ppo.ent_coef_final, ppo.anneal_iterations)
        lr = linear_schedule(iteration - 1, ppo.lr, 0.0, ppo.anneal_iterations) if ppo.anneal_lr else ppo.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        result = ppo_update(
            self.policy,
            self.optimizer,
            self.buffer,
            self.settings,
            ent_coef,
            self._shuffling,
            self.scaler,
            self.ranks,
            self.env.first,
        )
        # Once per rollout, after the update: the buffer's observations keep the scale they were acted on.
        for moments_of_rank in self.ranks.all_gather(moments(raw)):
            self.normaliser.merge(moments_of_rank)
        timing = _Timing(
            rollout=collected - began,
            hosts=self.env.host_seconds - host_seconds,
            update=perf_counter() - collected,
        )
        steps = self.config.trainer.num_envs * self.buffer.num_steps
        recorder.tally.skipped_steps = self.env.skipped_steps - skipped
        recorder.tally.non_finite = self.env.non_finite - non_finite
        tally = IterationTally.merged(self.ranks.all_gather(recorder.tally))
        metrics = tally.metrics() | result.metrics | timing.metrics(steps)
        metrics |= {"charts/env_epochs": iteration * steps, "charts/ent_coef": ent_coef, "charts/learning_rate": lr}
        self._report(iteration, result, metrics)
        return metrics

    def save(self, iteration: int) -> None:
        """Write a checkpoint named after its iteration, and the same as ``last.pt``."""
        for name in (f"iteration-{iteration:05d}.pt", "last.pt"):
            save_checkpoint(
                self.folder.checkpoints / name,
                policy=self.policy,
                normaliser=self.normaliser,
                optimizer=self.optimizer,
                iteration=iteration,
                config=to_plain(self.config),
            )

    def _report(self, iteration: int, result: UpdateResult, metrics: Metrics) -> None:
        """Take in the other ranks' events, and emit what an update and its metrics have to say beyond numbers."""
        for events in self.ranks.gather(self._events.drain() if self._events else []):
            for event in events:
                self.hub.emit(event)
        found = self.escalation.observe(iteration, metrics)
        self.hub.level = self.escalation.level
        if not self.ranks.is_first:
            return
        for explosion in result.explosions:
            self.hub.emit(
                RatioExplosion(
                    iteration=iteration,
                    update_epoch=explosion.epoch,
                    minibatch=explosion.minibatch,
                    count=explosion.count,
                    worst=tuple(asdict(entry) for entry in explosion.worst),
                )
            )
        skipped = metrics["losses/skipped_minibatches"]
        if skipped:
            self.hub.emit(NonFiniteUpdate(iteration=iteration, skipped_minibatches=int(skipped)))
        for event in found:
            self.hub.emit(event)
