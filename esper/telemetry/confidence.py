"""Confidence of intervals, and what it asks of a bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

LEVEL = 0.95
"""Coverage of every interval that Esper reports."""


def least_draws(level: float) -> int:
    """Return the smallest number of draws that puts one into each tail; with fewer, the ends of an interval are
    meaningless.
    """
    return math.ceil(round(2.0 / (1.0 - level), 6))


def student(values: Sequence[float], level: float = LEVEL) -> float:
    """Return half the length of Student's interval for the mean of at least two values."""
    from scipy.special import stdtrit  # not above: the configuration imports this module

    return float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(len(values))
