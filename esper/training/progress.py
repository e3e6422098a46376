"""How far a run is, beyond iterations: the time it took, and its best iteration so far."""

from __future__ import annotations

from time import perf_counter

from esper.runtime.records import Metrics
from esper.runtime.state import State

SCORE = "charts/episodic_return"


class Stopwatch:
    """Seconds of a run, over all the processes that it took."""

    def __init__(self) -> None:
        self._began = perf_counter()

    def seconds(self) -> float:
        """Since the beginning."""
        return perf_counter() - self._began

    def state_dict(self) -> State:
        """The time until now."""
        return {"seconds": self.seconds()}

    def load_state_dict(self, state: State) -> None:
        """Add the time of earlier processes, up to the checkpoint that they left."""
        self._began -= state["seconds"]


class Best:
    """The iteration with the highest mean return of training episodes; the first of equals.

    Attributes:
        score: that return, ``None`` before any episode has ended.
        iteration: which.
    """

    def __init__(self) -> None:
        self.score: float | None = None
        self.iteration = 0

    def take_in(self, iteration: int, metrics: Metrics) -> bool:
        """Whether this iteration is the best so far."""
        score = metrics[SCORE]
        if score is None or (self.score is not None and score <= self.score):
            return False
        self.score, self.iteration = score, iteration
        return True

    def state_dict(self) -> State:
        """Score and iteration."""
        return {"score": self.score, "iteration": self.iteration}

    def load_state_dict(self, state: State) -> None:
        """Take both back."""
        self.score, self.iteration = state["score"], state["iteration"]
