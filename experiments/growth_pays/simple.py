"""A plugin with simple rivals of the learned controller: a rule that reads one bit, and the same without it."""

from __future__ import annotations

from esper.controllers import register_controller
from experiments.growth_pays.one_bit import OneBit

register_controller("one_bit", lambda context: OneBit(reads=True))
register_controller("no_bit", lambda context: OneBit(reads=False))
