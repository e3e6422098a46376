"""Progress of a run: elapsed time, and the best iteration so far."""

from __future__ import annotations

from time import perf_counter

from esper.runtime.records import Metrics
from esper.runtime.state import State
from esper.runtime.waiting import waited

SCORE = "charts/episodic_return"


class Stopwatch:
    """Elapsed seconds of a run, over all its processes and from the start of each command."""

    def __init__(self) -> None:
        self._began = perf_counter() - waited()

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return perf_counter() - self._began

    def state_dict(self) -> State:
        """Return the elapsed time."""
        return {"seconds": self.seconds()}

    def load_state_dict(self, state: State) -> None:
        """Add the time of earlier processes, up to their checkpoint."""
        self._began -= state["seconds"]


class Best:
    """The iteration with the highest mean return of training episodes; the first of equals.

    Attributes:
        score: the highest mean return, ``None`` before any episode has ended.
        iteration: number of the iteration.
    """

    def __init__(self) -> None:
        self.score: float | None = None
        self.iteration = 0

    def take_in(self, iteration: int, metrics: Metrics) -> bool:
        """Record an iteration, and return whether it is the best so far."""
        score = metrics[SCORE]
        if score is None or (self.score is not None and score <= self.score):
            return False
        self.score, self.iteration = score, iteration
        return True

    def state_dict(self) -> State:
        """Return score and iteration."""
        return {"score": self.score, "iteration": self.iteration}

    def load_state_dict(self, state: State) -> None:
        """Restore score and iteration."""
        self.score, self.iteration = state["score"], state["iteration"]
