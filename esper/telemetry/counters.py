"""Counters and sums of one iteration or evaluation, which can be merged over ranks.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from esper.envs.instances import Instance
from esper.envs.observations import Observation
from esper.envs.records import EpisodeRecord, StepResult
from esper.growth import NUM_STAGES, STAGE_NAMES
from esper.growth.actions import NUM_OPS, OP_NAMES, Head
from esper.runtime.state import State, copied, plain_fields
from esper.telemetry.statistics import mean_sem


def _counts(length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.int64)


@dataclass(slots=True)
class OpCounts:
    """Counts of ops attempted, carried out, and chosen among several legal ones, ``int64 [6]`` each."""

    attempted: Tensor = field(default_factory=lambda: _counts(NUM_OPS))
    successful: Tensor = field(default_factory=lambda: _counts(NUM_OPS))
    chosen: Tensor = field(default_factory=lambda: _counts(NUM_OPS))

    @classmethod
    def merged(cls, parts: Sequence[OpCounts]) -> OpCounts:
        """Sum the counts of all parts."""
        return cls(
            attempted=sum((part.attempted for part in parts), _counts(NUM_OPS)),
            successful=sum((part.successful for part in parts), _counts(NUM_OPS)),
            chosen=sum((part.chosen for part in parts), _counts(NUM_OPS)),
        )

    def add(self, observation: Observation, actions: Tensor, success: Tensor) -> None:
        """Count one step of all environments."""
        op = actions[:, Head.OP]
        choice = observation.masks.op.sum(dim=1) > 1
        self.attempted += op.bincount(minlength=NUM_OPS)
        self.successful += op[success].bincount(minlength=NUM_OPS)
        self.chosen += op[choice].bincount(minlength=NUM_OPS)

    def choice_share(self) -> Tensor | None:
        """Return the share of each op among steps with a choice, ``float64 [6]``, ``None`` if there was none."""
        total = int(self.chosen.sum())
        return self.chosen.double() / total if total else None

    def metrics(self) -> dict[str, float | None]:
        """Return counts and shares by op name."""
        share = self.choice_share()
        metrics: dict[str, float | None] = {}
        for op, name in enumerate(OP_NAMES):
            metrics[f"ops/attempted/{name}"] = int(self.attempted[op])
            metrics[f"ops/successful/{name}"] = int(self.successful[op])
            metrics[f"ops/choice_share/{name}"] = None if share is None else float(share[op])
        return metrics


@dataclass(slots=True, kw_only=True)
class IterationCounters:
    """Totals of one iteration, for the environments of one rank or of all.

    Attributes:
        families: host families of the instances that may be drawn, in order.
        rents: prices of size that these instances have of their own, in order.
        ops: counts of ops.
        stages: ``int64 [10]``, slots by stage, summed over steps.
        components: reward components summed over environments and steps.
        episodes: records of ended episodes, in the order of environments within a step.
        host_seconds, skipped_steps, non_finite: see :class:`esper.envs.records.StepResult`, summed over steps.
        rollout_seconds: seconds spent on collecting the rollout.
        never_accuracies: final val accuracy of the never-grown twin of each of these episodes; empty without twins.
        never_bits: for text, the twins' final bits per byte.
    """

    families: tuple[str, ...]
    rents: tuple[float, ...] = ()
    ops: OpCounts = field(default_factory=OpCounts)
    stages: Tensor = field(default_factory=lambda: _counts(NUM_STAGES))
    components: dict[str, Tensor] = field(default_factory=dict)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    never_accuracies: list[float] = field(default_factory=list)
    rollout_seconds: float = 0.0
    host_seconds: float = 0.0
    never_bits: list[float] = field(default_factory=list)
    skipped_steps: int = 0
    non_finite: int = 0

    @classmethod
    def merged(cls, parts: Sequence[IterationCounters]) -> IterationCounters:
        """Merge the totals of all parts; episodes in the order of the parts."""
        components: dict[str, Tensor] = {}
        for part in parts:
            for name, value in part.components.items():
                components[name] = components.get(name, torch.zeros(())) + value
        return cls(
            families=parts[0].families,
            rents=parts[0].rents,
            ops=OpCounts.merged([part.ops for part in parts]),
            stages=sum((part.stages for part in parts), _counts(NUM_STAGES)),
            components=components,
            episodes=[episode for part in parts for episode in part.episodes],
            never_accuracies=[accuracy for part in parts for accuracy in part.never_accuracies],
            rollout_seconds=sum(part.rollout_seconds for part in parts),
            host_seconds=sum(part.host_seconds for part in parts),
            never_bits=[bits for part in parts for bits in part.never_bits],
            skipped_steps=sum(part.skipped_steps for part in parts),
            non_finite=sum(part.non_finite for part in parts),
        )

    def add(self, observation: Observation, actions: Tensor, result: StepResult) -> None:
        """Add one step of all environments."""
        self.ops.add(observation, actions, result.applied.success)
        self.stages += result.transitions.after.flatten().bincount(minlength=NUM_STAGES)
        for name, values in result.components.items():
            self.components[name] = self.components.get(name, torch.zeros(())) + values.sum()
        self.episodes += result.episodes
        self.host_seconds += result.host_seconds
        self.skipped_steps += result.skipped_steps
        self.non_finite += result.non_finite

    def state_dict(self) -> State:
        """Return everything as plain values."""
        return plain_fields(self) | {
            "families": list(self.families),
            "rents": list(self.rents),
            "ops": plain_fields(self.ops),
            "components": {name: copied(value) for name, value in self.components.items()},
            "episodes": [asdict(episode) for episode in self.episodes],
            "never_accuracies": list(self.never_accuracies),
        }

    @classmethod
    def from_state(cls, state: State) -> IterationCounters:
        """Rebuild from :meth:`state_dict`."""
        episodes = [EpisodeRecord(**e | {"instance": Instance(**e["instance"])}) for e in state["episodes"]]
        rebuilt = {
            "families": tuple(state["families"]),
            "rents": tuple(state.get("rents", ())),
            "ops": OpCounts(**state["ops"]),
            "episodes": episodes,
        }
        return cls(**state | rebuilt)

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics of the iteration; ``None`` where nothing was measured."""
        episodes = self.episodes
        total = int(self.stages.sum())
        metrics = self.ops.metrics()
        metrics |= {f"stages/{name}": int(self.stages[i]) / total for i, name in enumerate(STAGE_NAMES) if i}
        steps = self.ops.attempted.sum()
        metrics |= {f"reward/{name}": float(value / steps) for name, value in self.components.items()}
        bits = [episode.val_bits for episode in episodes if episode.val_bits is not None]
        if bits:
            metrics["charts/never_bits_per_byte"] = _mean(self.never_bits)
        pairs = zip(episodes, self.never_accuracies, strict=True) if self.never_accuracies else ()
        for name, values in (
            *([("final_bits_per_byte", bits)] if bits else []),
            ("episodic_return", [episode.episode_return for episode in episodes]),
            ("final_val_accuracy", [episode.val_accuracy for episode in episodes]),
            ("val_accuracy_gain", [episode.val_accuracy - never for episode, never in pairs]),
            ("added_parameters", [float(episode.added_parameters) for episode in episodes]),
            ("num_fossilized", [float(episode.num_fossilized) for episode in episodes]),
            ("relative_flops", [episode.relative_flops for episode in episodes]),
        ):
            mean = mean_sem(torch.tensor(values, dtype=torch.float64))
            metrics[f"charts/{name}"] = None if mean is None else mean.mean
            metrics[f"charts/{name}_sem"] = None if mean is None else mean.sem
        metrics["charts/num_episodes"] = len(episodes)
        metrics["charts/num_crashed"] = sum(episode.crashed for episode in episodes)
        metrics["charts/skipped_host_steps"] = self.skipped_steps
        metrics["charts/non_finite_gradients"] = self.non_finite
        metrics["charts/never_val_accuracy"] = _mean(self.never_accuracies)
        for family in self.families:
            returns = [episode.episode_return for episode in episodes if episode.instance.family == family]
            metrics[f"return_by_family/{family}"] = _mean(returns)
        for rent in self.rents:
            returns = [episode.episode_return for episode in episodes if episode.instance.rent_weight == rent]
            metrics[f"return_by_rent/{rent:g}"] = _mean(returns)
        return metrics


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
