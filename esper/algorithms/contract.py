"""Interface between the training loop and the algorithm that improves the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from esper.algorithms.buffer import RolloutBuffer
from esper.runtime.records import Metrics
from esper.runtime.state import Stateful
from esper.telemetry.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Report of one update, the same on every rank.

    Attributes:
        metrics: numbers by name; ``None`` = not measured.
        events: events for the log.
    """

    metrics: Metrics
    events: tuple[Event, ...] = field(default=())


class Algorithm(Protocol):
    """Interface of an algorithm, which improves a policy from rollouts in the same way on every rank.

    It is built with the policy, the environment's discount and the ranks (:class:`~esper.algorithms.AlgorithmContext`).
    """

    @property
    def shared(self) -> Mapping[str, Stateful]:
        """Components whose state is equal on every rank, such as an optimizer, by their names in checkpoints."""

    @property
    def own(self) -> Mapping[str, Stateful]:
        """Components whose state differs between ranks, such as random streams, by their names in checkpoints."""

    def update(self, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        """Improve the policy on a full rollout of this rank's environments.

        Args:
            buffer: not changed.
            iteration: number of the iteration, from 1. Schedules depend on it alone, so that a resumed run needs no
                counter.
        """
