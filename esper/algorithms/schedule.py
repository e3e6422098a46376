"""Schedules of hyperparameters over a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Linear schedules of learning rate and entropy coefficient.

    Attributes:
        lr, lr_final: learning rate at first and at last.
        ent_coef, ent_coef_final: weight of the entropy bonus at first and at last.
        num_iterations: iterations until the last values, independent of a run's length, so that a longer run continues
            a shorter one.
    """

    lr: float
    lr_final: float
    ent_coef: float
    ent_coef_final: float
    num_iterations: int

    def at(self, iteration: int) -> tuple[float, float]:
        """Return learning rate and entropy coefficient of an iteration, numbered from 1."""
        done, total = iteration - 1, self.num_iterations
        lr = _line(done, self.lr, self.lr_final, total)
        return lr, _line(done, self.ent_coef, self.ent_coef_final, total)


def _line(done: int, start: float, final: float, total: int) -> float:
    return final if done >= total else start + (final - start) * done / total
