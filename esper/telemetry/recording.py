"""Recording of environment steps as events, totals and timelines, from the environment's reports alone.

Axis legend: E = environments, S = slots, T = epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.breakdowns import REASONS
from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import EpisodeRecord, StepResult
from esper.growth import STAGE_NAMES
from esper.growth.actions import HEADS, OP_NAMES, OP_WAIT, Head, describe
from esper.runtime.state import State
from esper.telemetry.counters import IterationCounters
from esper.telemetry.events import EpisodeEnded, GateEvaluated, HostCrashed, LastAction, ShapleyValue, StageChanged
from esper.telemetry.hub import TelemetryHub
from esper.telemetry.timeline import EpisodeTimeline, OpMark


class IterationRecorder:
    """Recorder of one iteration: emits events immediately and sums them up in :attr:`counters`.

    Args:
        env: the environment to record.
        hub: receives events.
        iteration: number of the iteration, from 1.
    """

    def __init__(self, env: GrowthEnv, hub: TelemetryHub, iteration: int) -> None:
        self._env, self._hub = env, hub
        self._families = () if env.pool.joined else tuple(sorted({instance.family for instance in env.pool}))
        self._rents = tuple(sorted({each.rent_weight for each in env.pool if each.rent_weight is not None}))
        self.begin(iteration)

    def begin(self, iteration: int) -> None:
        """Start another iteration, with empty totals."""
        self._iteration = iteration
        self.counters = IterationCounters(families=self._families, rents=self._rents)

    def state_dict(self) -> State:
        """Return the number of the iteration, and its totals so far."""
        return {"iteration": self._iteration, "tally": self.counters.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the iteration and its totals."""
        self._iteration, self.counters = state["iteration"], IterationCounters.from_state(state["tally"])

    def __call__(self, observation: Observation, actions: Tensor, result: StepResult) -> None:
        """Record one step."""
        self.counters.add(observation, actions, result)
        twins = self._env.rewarder.twins
        if twins is not None:
            curves = [twins[episode.instance] for episode in result.episodes]
            self.counters.never_accuracies += [float(curve.accuracy[-1]) for curve in curves]
            bits = [self._env.loader.task.val.bits_per_byte(float(curve.loss[-1])) for curve in curves]
            self.counters.never_bits += [each for each in bits if each is not None]
        self._emit_lifecycle(result)
        if self._hub.wants(LastAction):
            self._emit_actions(observation, actions, result)
        for episode in result.episodes:
            self._emit_episode(episode, result)

    def _emit_lifecycle(self, result: StepResult) -> None:
        """Emit gates and stage changes, first those of the action, then the automatic ones."""
        epochs = result.epochs.tolist()
        steps = (
            (result.applied.gates, result.stages_before, result.transitions.before),
            (result.transitions.gates, result.transitions.before, result.transitions.after),
        )
        for gates, before, after in steps:
            if self._hub.wants(GateEvaluated):
                for gate in gates.records():
                    self._hub.emit(
                        GateEvaluated(
                            environment=self._env.first + gate.environment,
                            iteration=self._iteration,
                            epoch=epochs[gate.environment],
                            slot=self._env.slot_ids[gate.slot],
                            gate=gate.gate,
                            passed=gate.passed,
                            reason=gate.reason,
                        )
                    )
            if self._hub.wants(StageChanged):
                for env, slot in (before != after).nonzero().tolist():
                    self._hub.emit(
                        StageChanged(
                            environment=self._env.first + env,
                            iteration=self._iteration,
                            epoch=epochs[env],
                            slot=self._env.slot_ids[slot],
                            blueprint=_blueprint_name(int(result.blueprints[env, slot])),
                            before=STAGE_NAMES[int(before[env, slot])],
                            after=STAGE_NAMES[int(after[env, slot])],
                        )
                    )

    def _emit_actions(self, observation: Observation, actions: Tensor, result: StepResult) -> None:
        """Emit one record per environment; a head is flagged as masked if it had fewer legal choices than its size."""
        masks, envs = observation.masks, torch.arange(len(actions))
        op, slot = actions[:, Head.OP], actions[:, Head.SLOT]
        free = (masks.op, masks.slot[envs, op], masks.blueprint[envs, slot])
        masked = torch.zeros(actions.shape, dtype=torch.bool)
        masked[:, : len(free)] = torch.stack([~legal.all(dim=1) for legal in free], dim=1)
        flags = masked.tolist()
        rows, success, epochs = actions.tolist(), result.applied.success.tolist(), result.epochs.tolist()
        for env, row in enumerate(rows):
            chosen = describe(row, 0.0, self._env.slot_ids, blueprint_ids())  # what depends on alpha is not recorded
            self._hub.emit(
                LastAction(
                    environment=self._env.first + env,
                    iteration=self._iteration,
                    epoch=epochs[env],
                    op=chosen.op,
                    slot=chosen.slot,
                    blueprint=chosen.blueprint,
                    style=chosen.style,
                    masked=dict(zip(HEADS, flags[env], strict=True)),
                    success=success[env],
                )
            )

    def _emit_episode(self, episode: EpisodeRecord, result: StepResult) -> None:
        twins = self._env.rewarder.twins
        if episode.crashed:
            self._hub.emit(
                HostCrashed(
                    environment=self._env.first + episode.environment,
                    iteration=self._iteration,
                    epoch=episode.num_epochs,
                    instance=episode.instance.index,
                    family=episode.instance.family,
                    reason=REASONS[int(result.breakdown[episode.environment])],
                    twin_crashed=None if twins is None else twins[episode.instance].crashed,
                )
            )
        self._hub.emit(
            EpisodeEnded(
                environment=self._env.first + episode.environment,
                iteration=self._iteration,
                instance=episode.instance.index,
                family=episode.instance.family,
                episode_return=episode.episode_return,
                val_accuracy=episode.val_accuracy,
                test_accuracy=episode.test_accuracy,
                val_bits=episode.val_bits,
                added_parameters=episode.added_parameters,
                num_fossilized=episode.num_fossilized,
                crashed=episode.crashed,
            )
        )
        for slot, slot_id in enumerate(self._env.slot_ids):
            if slot_id in episode.shapley:
                self._hub.emit(
                    ShapleyValue(
                        environment=self._env.first + episode.environment,
                        iteration=self._iteration,
                        instance=episode.instance.index,
                        slot=slot_id,
                        blueprint=_blueprint_name(int(result.blueprints[episode.environment, slot])),
                        value=episode.shapley[slot_id],
                    )
                )


def _blueprint_name(index: int) -> str | None:
    return blueprint_ids()[index] if index >= 0 else None


class TimelineRecorder:
    """Recorder of every slot of every environment, from the start of its first episode."""

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, env: GrowthEnv, actions: Tensor, result: StepResult) -> None:
        """Record one step of all environments."""
        self._rows.append(
            (
                result.transitions.before,
                env.state.alpha,
                result.blueprints,
                actions,
                result.applied.success,
                result.accuracy,
            )
        )

    def timeline(self, env: GrowthEnv, episode: EpisodeRecord, controller: str) -> EpisodeTimeline:
        """Return the first episode of one environment, without the epochs after a crash."""
        stages, alphas, blueprints, actions, success, accuracy = (
            torch.stack(column[: episode.num_epochs])[:, episode.environment]
            for column in zip(*self._rows, strict=True)
        )
        instance = episode.instance
        twin = None if env.rewarder.twins is None else env.rewarder.twins[instance].accuracy[: len(stages)]
        return EpisodeTimeline(
            slot_ids=tuple(env.slot_ids),
            stages=stages,
            blueprints=tuple(tuple(map(_blueprint_name, row)) for row in blueprints.tolist()),
            alphas=alphas,
            ops=tuple(_marks(actions.tolist(), success.tolist())),
            val_accuracy=accuracy,
            twin_accuracy=twin,
            scored=episode.val_accuracy,
            family=instance.family,
            instance=instance.index,
            controller=controller,
        )


def _marks(actions: Sequence[Sequence[int]], success: Sequence[bool]) -> list[OpMark]:
    return [
        OpMark(OP_NAMES[row[Head.OP]], None if row[Head.OP] == OP_WAIT else row[Head.SLOT], done)
        for row, done in zip(actions, success, strict=True)
    ]
