"""What one controller achieved over a set of hosts: the rows of the closing table and of ``result.json``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor


class Mean(NamedTuple):
    """A mean and its standard error, which is ``None`` for a single value."""

    mean: float
    sem: float | None


def mean_sem(values: Tensor) -> Mean | None:
    """Mean and standard error of the mean, ``None`` for no values.

    Args:
        values: ``[N]``, one number per host; NaN makes the result NaN, so leave out what was not measured.

    Returns:
        mean, and s / sqrt(N) with s the sample standard deviation (divisor N - 1), in float64.
    """
    count = values.numel()
    if count == 0:
        return None
    exact = values.to(torch.float64)
    sem = float(exact.std() / count**0.5) if count > 1 else None
    return Mean(float(exact.mean()), sem)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSummary:
    """One controller over ``num_hosts`` hosts. ``None`` where a number was not measured.

    Attributes:
        name: the controller.
        num_hosts: episodes behind each mean.
        episode_return: undiscounted return.
        val_accuracy: accuracy after the last host epoch, as a fraction of 1.
        test_accuracy: the same on the test split.
        val_bits, test_bits: loss in bits per byte, of text.
        added_parameters: parameters of the modules kept.
        wait_share: share of WAIT among steps with a choice, as a fraction of 1.
        num_fossilized: modules kept for good.
    """

    name: str
    num_hosts: int
    episode_return: Mean | None
    val_accuracy: Mean | None
    test_accuracy: Mean | None
    added_parameters: Mean | None
    wait_share: Mean | None
    num_fossilized: Mean | None
    val_bits: Mean | None = None
    test_bits: Mean | None = None

    def to_record(self) -> dict[str, object]:
        """Plain dict for ``result.json``: each mean as ``{"mean": ..., "sem": ...}``."""
        record: dict[str, object] = {"name": self.name, "num_hosts": self.num_hosts}
        for field in fields(self)[2:]:
            value: Mean | None = getattr(self, field.name)
            record[field.name] = value if value is None else value._asdict()
        return record
