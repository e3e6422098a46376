"""Tuning of rivals: the parameters of every control, found on training instances with a stated budget."""

from __future__ import annotations

from esper.evaluation.tuning.arena import Arena, arranged
from esper.evaluation.tuning.halving import Halving, successive_halving
from esper.evaluation.tuning.search import tune

__all__ = ["Arena", "Halving", "arranged", "successive_halving", "tune"]
