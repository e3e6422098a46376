"""The training loop of one rank: collect, update, log, checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import torch

from esper.algorithms import RolloutBuffer, UpdateResult
from esper.config import to_plain
from esper.config.learning import Twin
from esper.envs.growth import GrowthEnv
from esper.envs.twins import TwinCache
from esper.experiment.build import Experiment
from esper.experiment.checkpoint import loading, restore_policy, save_checkpoint
from esper.experiment.imitating import Imitating, build_imitating
from esper.experiment.transfer import transfer
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.runtime.devices import device_name, spread
from esper.runtime.preemption import Preempted, StopSignals, Vote
from esper.runtime.records import Metrics
from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.state import RandomStream, State, Stateful, restore, states
from esper.runtime.terminal import say
from esper.telemetry.buffer import EventBuffer
from esper.telemetry.counters import IterationCounters
from esper.telemetry.escalation import Escalation
from esper.telemetry.events import Event, Level, from_state
from esper.telemetry.hub import TelemetryHub
from esper.telemetry.recording import IterationRecorder
from esper.training.progress import Best, Stopwatch
from esper.training.reshard import reshard
from esper.training.rollout import RolloutState, collect
from esper.training.start import Start


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds of one iteration on this rank, by activity; an update includes waiting for the other ranks."""

    rollout: float
    hosts: float
    update: float

    def metrics(self, num_epochs: int) -> dict[str, float | None]:
        """Return the times; ``time/control_share`` is the share of everything but training and validating hosts."""
        total = self.rollout + self.update
        return {
            "time/rollout": self.rollout,
            "time/hosts": self.hosts,
            "time/update": self.update,
            "time/control_share": 1.0 - self.hosts / total,
            "charts/SPS": num_epochs / total,
        }


class Trainer:
    """State of one rank of a run, and its iterations.

    :meth:`begin`, then :meth:`run`, or :meth:`iterate` by hand.

    Args:
        experiment: objects shared by the environments.
        folder: run folder, for the first rank's checkpoints.
        hub: receives events and, on the first rank, metrics.
        events: buffers this rank's events until the first one fetches them; ``None`` on the first.
        signals: requests to stop.
        stopwatch: elapsed time of the run.

    Attributes:
        policy, normaliser: the learned parts.
        twins: curves of never-grown twins of the training instances, ``None`` without twins.
        iteration: number of completed iterations.
        rollout: present state of the environments.
        escalation: watches metrics, and sets the telemetry level.
    """

    rollout: RolloutState

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        hub: TelemetryHub,
        events: EventBuffer | None = None,
        *,
        signals: StopSignals | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        config, ranks = experiment.config, experiment.ranks
        self.config, self.ranks, self.folder, self.hub = config, ranks, folder, hub
        self.device = experiment.device
        self.policy: GrowthPolicy
        self.normaliser: Normaliser
        self.policy, self.normaliser = experiment.policy()
        if config.policy.compile:
            self.policy.compile()
        share, num_steps = experiment.share(config.trainer.num_envs), config.trainer.num_steps
        assert num_steps is not None, "nulls are resolved on loading"
        self.twins: TwinCache | None = None
        if config.reward.twin is Twin.cached:
            self.twins = experiment.twins(len(share), lambda done, total: hub.stage("never-grown twins", done, total))
        self.pool = experiment.pool("train", config.instances.num_train)
        self.env: GrowthEnv = experiment.env(share, self.pool, self.twins, run_seed=config.seed, measure_test=False)
        self.algorithm = experiment.algorithm(self.policy, self.env)
        self._imitating = build_imitating(experiment, self.policy, self.normaliser, self.env)
        self.buffer = RolloutBuffer(
            len(share),
            num_steps,
            self.policy.num_features,
            self.policy.num_slots,
            self.policy.num_blueprints,
            self.policy.state_dim,
            experiment.device,
        )
        self._events = events
        self.escalation = Escalation(hub.level, config.telemetry.escalation_iterations)
        self._sampling = generator("actions", config.seed, ranks.rank)
        self.recorder = IterationRecorder(self.env, hub, 1)
        self.iteration, self.best = 0, Best()
        self._signals, self._stopwatch = signals or StopSignals(), stopwatch or Stopwatch()
        self._vote = Vote(ranks, self._signals)

    @property
    def imitating(self) -> Imitating | None:
        """The controller that plays the next iteration and the algorithm that imitates it, if there are any."""
        imitating = self._imitating
        return None if imitating is None or self.iteration >= imitating.iterations else imitating

    @property
    def _shared(self) -> dict[str, Stateful]:
        """Return the components whose state is equal on every rank, besides policy and normaliser."""
        return {
            **self.algorithm.shared,
            **(self.imitating.shared if self.imitating else {}),
            "best": self.best,
            "stopwatch": self._stopwatch,
            "escalation": self.escalation,
        }

    @property
    def _own(self) -> dict[str, Stateful]:
        """Return the components whose state differs between ranks."""
        own: dict[str, Stateful | None] = {
            **self.algorithm.own,
            **(self.imitating.own if self.imitating else {}),
            "env": self.env,
            "buffer": self.buffer,
            "recorder": self.recorder,
            "sampling": RandomStream(self._sampling),
            "events": self._events,
            "twins": self.twins,
        }
        return {name: component for name, component in own.items() if component is not None}

    def begin(self, start: Start | None = None) -> None:
        """Prepare the first iteration, or the continuation after a checkpoint."""
        if start is not None and start.record is not None:
            self._resume(start)
            return
        if start is not None and start.source is not None:
            self._transfer(start.source)
        if self.twins is not None:
            self.twins.require_together(self.pool, self.ranks)
        self.rollout = RolloutState(self.env.reset(), self.policy.initial_state(self.env.num_envs))

    def run(self) -> None:
        """Run all remaining iterations.

        Raises:
            Preempted: a signal asked the run to stop; the state is on disk.
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
        """Collect a rollout, update the policy, and update the normaliser; return ``None`` if stopped on the way."""
        counters, iteration, began = self.recorder.counters, self.iteration + 1, perf_counter()
        imitating = self.imitating
        raw = collect(
            self.env,
            self.policy,
            self.normaliser,
            self.buffer,
            self.rollout,
            self._sampling,
            self.recorder,
            self._vote.ask,
            None if imitating is None else imitating.expert,
        )
        collected = perf_counter()
        counters.rollout_seconds += collected - began
        if raw is None:
            return None
        result = (self.algorithm if imitating is None else imitating.algorithm).update(self.buffer, iteration)
        # Once per rollout, after the update: the buffer's observations keep the scale they were acted on.
        for moments_of_rank in self.ranks.all_gather(moments(raw).to("cpu")):
            self.normaliser.merge(moments_of_rank)
        timing = _Timing(
            rollout=counters.rollout_seconds, hosts=counters.host_seconds, update=perf_counter() - collected
        )
        steps = self.config.trainer.num_envs * self.buffer.num_steps
        merged = IterationCounters.merged(self.ranks.all_gather(counters))
        metrics: Metrics = {
            **merged.metrics(),
            **result.metrics,
            **timing.metrics(steps),
            "charts/env_epochs": iteration * steps,
        }
        self._report(iteration, result, metrics)
        self.iteration = iteration
        self.buffer.clear()
        self.recorder.begin(iteration + 1)
        return metrics

    def save(self, metrics: Metrics | None) -> None:
        """Write checkpoints, on the first rank, from the state of all ranks.

        ``last.pt`` is written last: a run that is killed before repeats the iteration of the others.

        Args:
            metrics: metrics of the last iteration; ``None`` during one.
        """
        own = states(self._own) | {
            "carry": self.rollout.state_dict(),
            "num_threads": torch.get_num_threads(),
            "device": device_name(self.device),
        }
        ranks = self.ranks.gather(own)
        if not self.ranks.is_first:
            return
        played = self._imitating is None or self.iteration > self._imitating.iterations  # by the policy itself
        if metrics is not None and played and self.best.take_in(self.iteration, metrics):
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

    def _transfer(self, source: dict[str, Any]) -> None:
        """Load another run's policy, and report parameters that keep their initial values."""
        left = transfer(source, self.policy, self.normaliser, self.config.checkpoint.partial)
        if left and self.ranks.is_first and self.config.telemetry.console != "off":
            say(f"checkpoint.partial: initial values are kept for {', '.join(left)}")

    def _resume(self, start: Start) -> None:
        """Resume from a checkpoint."""
        for event in self.restore(start):
            self.hub.emit(event)
        if self.twins is not None:
            # Curves of other stacks or another kind of device are not equal to the bit.
            self.twins.require_together(self.pool, self.ranks)

    def restore(self, start: Start) -> list[Event]:
        """Restore the state of a checkpoint; return events that have not been emitted yet."""
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
            own = reshard(start.training["ranks"], shares)[self.ranks.rank]
            restore({name: part for name, part in self._own.items() if name in own}, own)
            waiting = [from_state(event) for event in own["waiting"]]
        self.rollout = RolloutState.from_state(own["carry"], self.device)
        return waiting

    def _stop(self, number: int) -> NoReturn:
        """Stop for a signal, once the first rank has written everything."""
        if self.ranks.is_first:
            self.folder.status(RunState.PREEMPTED, iteration=self.iteration, step=self.buffer.size)
        self.ranks.broadcast(None)
        raise Preempted(number)

    def _report(self, iteration: int, result: UpdateResult, metrics: Metrics) -> None:
        """Collect the other ranks' events, and emit the events of an update and its metrics."""
        for events in self.ranks.gather(self._events.drain() if self._events else []):
            for event in events:
                self.hub.emit(event)
        found = self.escalation.observe(iteration, metrics)
        self.hub.level = self.escalation.level
        if not self.ranks.is_first:
            return
        for event in (*result.events, *found):
            self.hub.emit(event)


def check_start(experiment: Experiment, folder: RunFolder, start: Start) -> None:
    """Restore a run's starting point once as a test, before anything in its folder changes.

    Raises:
        CheckpointError: it does not fit the components of the run.
    """
    if start.record is not None:
        events = None if experiment.ranks.is_first else EventBuffer()
        with loading(folder.last_checkpoint):
            Trainer(experiment, folder, TelemetryHub([], Level.off), events).restore(start)
    elif start.source is not None:
        checkpoint = experiment.config.checkpoint
        with loading(str(checkpoint.path)):
            transfer(start.source, *experiment.policy(), checkpoint.partial)
