"""The loop of one rank: collect, update, log, checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import torch

from esper.config import to_plain
from esper.config.learning import Twin
from esper.envs.growth import GrowthEnv
from esper.envs.twins import TwinCache
from esper.experiment.build import Laboratory, ppo_settings, scheduled
from esper.experiment.checkpoint import restore_policy, save_checkpoint, usable
from esper.experiment.transfer import take_over
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.ppo import Metrics, RolloutBuffer, UpdateResult, ppo_update
from esper.runtime.devices import device_name, spread
from esper.runtime.precision import policy_scaler
from esper.runtime.preemption import Preempted, StopSignals, Vote
from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.state import RandomStream, State, Stateful, restore, states
from esper.runtime.terminal import say
from esper.telemetry.buffer import EventBuffer
from esper.telemetry.counters import IterationTally
from esper.telemetry.escalation import Escalation
from esper.telemetry.events import Event, Level, RatioExplosion, from_state
from esper.telemetry.hub import TelemetryHub
from esper.telemetry.recording import IterationRecorder
from esper.training.progress import Best, Stopwatch
from esper.training.reshard import redistributed
from esper.training.rollout import Carry, collect
from esper.training.start import Start


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

    :meth:`begin`, then :meth:`run`, or :meth:`iterate` by hand.

    Args:
        laboratory: what environments share.
        folder: where the first rank puts checkpoints.
        hub: receives events and, on the first rank, metrics.
        events: keeps this rank's events until the first one takes them in; ``None`` on the first.
        signals: requests to end.
        stopwatch: of the run.

    Attributes:
        policy, normaliser: what is learned.
        twins: curves of never-grown twins of the training instances, ``None`` without twins.
        iteration: iterations done.
        carry: where the environments are.
        escalation: watches metrics, and decides how much telemetry is kept.
    """

    carry: Carry

    def __init__(
        self,
        laboratory: Laboratory,
        folder: RunFolder,
        hub: TelemetryHub,
        events: EventBuffer | None = None,
        *,
        signals: StopSignals | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        config, ranks = laboratory.config, laboratory.ranks
        self.config, self.ranks, self.folder, self.hub = config, ranks, folder, hub
        self.device = laboratory.device
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
        self.pool = laboratory.pool("train", config.instances.num_train)
        self.env: GrowthEnv = laboratory.env(share, self.pool, self.twins, run_seed=config.seed, measure_test=False)
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
        self._sampling = generator("actions", config.seed, ranks.rank)
        self._shuffling = generator("minibatches", config.seed, ranks.rank)
        self.recorder = IterationRecorder(self.env, hub, 1)
        self.iteration, self.best = 0, Best()
        self._signals, self._stopwatch = signals or StopSignals(), stopwatch or Stopwatch()
        self._vote = Vote(ranks, self._signals)

    @property
    def _shared(self) -> dict[str, Stateful]:
        """What is the same on every rank, beyond policy and normaliser."""
        shared: dict[str, Stateful] = {
            "optimizer": self.optimizer,
            "best": self.best,
            "stopwatch": self._stopwatch,
            "escalation": self.escalation,
        }
        return shared if self.scaler is None else shared | {"scaler": self.scaler}

    @property
    def _own(self) -> dict[str, Stateful]:
        """What every rank has for itself."""
        own: dict[str, Stateful | None] = {
            "env": self.env,
            "buffer": self.buffer,
            "recorder": self.recorder,
            "sampling": RandomStream(self._sampling),
            "shuffling": RandomStream(self._shuffling),
            "events": self._events,
            "twins": self.twins,
        }
        return {name: component for name, component in own.items() if component is not None}

    def begin(self, start: Start | None = None) -> None:
        """Get ready for the first iteration, or for what comes next after a checkpoint."""
        if start is not None and start.record is not None:
            self._go_on(start)
            return
        if start is not None and start.source is not None:
            self._take_over(start.source)
        if self.twins is not None:
            self.twins.require_together(self.pool, self.ranks)
        self.carry = Carry(self.env.reset(), self.policy.initial_state(self.env.num_envs))

    def run(self) -> None:
        """All iterations that are left.

        Raises:
            Preempted: a signal asked for an end; the state is on disk.
        """
        with self._signals.deferred():
            while self.iteration < self.config.trainer.num_iterations:
                metrics = self.iterate()
                if metrics is not None and self.ranks.is_first:
                    self.hub.log_metrics(self.iteration, metrics)
                self.save(metrics)
                number = self._vote.settle()
                if number:
                    self._stop(number)

    def iterate(self) -> Metrics | None:
        """Collect a rollout, update the policy, take in the observations; ``None`` if asked to stop on the way."""
        tally, iteration, began = self.recorder.tally, self.iteration + 1, perf_counter()
        raw = collect(
            self.env,
            self.policy,
            self.normaliser,
            self.buffer,
            self.carry,
            self._sampling,
            self.recorder,
            self._vote.ask,
        )
        collected = perf_counter()
        tally.rollout_seconds += collected - began
        if raw is None:
            return None
        lr, ent_coef = scheduled(self.config.ppo, iteration - 1)
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
        for moments_of_rank in self.ranks.all_gather(moments(raw).to("cpu")):
            self.normaliser.merge(moments_of_rank)
        timing = _Timing(rollout=tally.rollout_seconds, hosts=tally.host_seconds, update=perf_counter() - collected)
        steps = self.config.trainer.num_envs * self.buffer.num_steps
        merged = IterationTally.merged(self.ranks.all_gather(tally))
        metrics = merged.metrics() | result.metrics | timing.metrics(steps)
        metrics |= {"charts/env_epochs": iteration * steps, "charts/ent_coef": ent_coef, "charts/learning_rate": lr}
        self._report(iteration, result, metrics)
        self.iteration = iteration
        self.buffer.clear()
        self.recorder.begin(iteration + 1)
        return metrics

    def save(self, metrics: Metrics | None) -> None:
        """Write checkpoints, on the first rank, from the state of all.

        ``last.pt`` comes last: a run that is killed before repeats what those kept for good are from.

        Args:
            metrics: of the iteration just done; ``None`` in the midst of one.
        """
        own = states(self._own) | {
            "carry": self.carry.state_dict(),
            "num_threads": torch.get_num_threads(),
            "device": device_name(self.device),
        }
        ranks = self.ranks.gather(own)
        if not self.ranks.is_first:
            return
        if metrics is not None and self.best.take_in(self.iteration, metrics):
            self._write(self.folder.checkpoints / "best.pt")
        if metrics is not None and self.iteration % self.config.trainer.checkpoint_every == 0:
            self._write(self.folder.kept_checkpoint(self.iteration))
        self.hub.flush()
        training = states(self._shared) | {"positions": self.folder.positions(), "ranks": ranks}
        self._write(self.folder.last_checkpoint, training)

    def _write(self, path: Path, training: State | None = None) -> None:
        save_checkpoint(
            path,
            policy=self.policy,
            normaliser=self.normaliser,
            iteration=self.iteration,
            config=to_plain(self.config),
            training=training,
        )

    def _take_over(self, source: dict[str, Any]) -> None:
        """Start from another run's policy, and say what stayed as initialised."""
        left = take_over(source, self.policy, self.normaliser, self.config.checkpoint.partial)
        if left and self.ranks.is_first and self.config.telemetry.console != "off":
            say(f"checkpoint.partial: as initialised stay {', '.join(left)}")

    def _go_on(self, start: Start) -> None:
        """Go on from a checkpoint."""
        for event in self.restore(start):
            self.hub.emit(event)
        if self.twins is not None:
            # Those of other stacks or another kind of device are not equal to the bit.
            self.twins.require_together(self.pool, self.ranks)

    def restore(self, start: Start) -> list[Event]:
        """Take up the state of a checkpoint; returns events that nobody has heard of yet."""
        record = start.record
        assert record is not None
        self.iteration = record["iteration"]
        restore_policy(record, self.policy, self.normaliser)
        restore(self._shared, start.training)
        self.hub.level = self.escalation.level
        if start.same_ranks(self.ranks):
            own = start.training["ranks"][self.ranks.rank]
            restore(self._own, own)
            waiting: list[Event] = []
        else:
            shares = spread(self.config.trainer.num_envs, self.ranks.size)
            own = redistributed(start.training["ranks"], shares)[self.ranks.rank]
            restore({name: part for name, part in self._own.items() if name in own}, own)
            waiting = [from_state(event) for event in own["waiting"]]
        self.carry = Carry.from_state(own["carry"], self.device)
        return waiting

    def _stop(self, number: int) -> NoReturn:
        """End for a signal, once the first rank has written everything."""
        if self.ranks.is_first:
            self.folder.status(RunState.PREEMPTED, iteration=self.iteration, step=self.buffer.size)
        self.ranks.broadcast(None)
        raise Preempted(number)

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
        for event in found:
            self.hub.emit(event)


def rehearse(laboratory: Laboratory, folder: RunFolder, start: Start) -> None:
    """Take up once, for nothing, what a run starts from: before anything in its folder changes.

    Raises:
        CheckpointError: it does not fit what the run is made of here.
    """
    if start.record is not None:
        events = None if laboratory.ranks.is_first else EventBuffer()
        with usable(folder.last_checkpoint):
            Trainer(laboratory, folder, TelemetryHub([], Level.off), events).restore(start)
    elif start.source is not None:
        checkpoint = laboratory.config.checkpoint
        with usable(str(checkpoint.path)):
            take_over(start.source, *laboratory.policy(), checkpoint.partial)
