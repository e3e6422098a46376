"""Who decides: one protocol for the learned policy and for every control.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from esper.envs.records import EnvView
from esper.growth.actions import NUM_HEADS, AlphaTarget, Head, Op, Style, Tempo

SICK = 0.5
"""Gradient health below which the rule-based controllers give a module up."""


class Controller(Protocol):
    """Chooses one action per environment and step."""

    name: str

    def reset(self, which: Tensor) -> None:
        """Forget the past of some environments, ``which: bool [E]``, whose episodes start anew."""

    def act(self, view: EnvView) -> Tensor:
        """Legal actions, ``int64 [E, 8]`` in head order."""


def waiting(num_envs: int) -> Tensor:
    """WAIT everywhere, ``int64 [E, 8]``."""
    return torch.zeros(num_envs, NUM_HEADS, dtype=torch.int64)


def germinate(slot: int, blueprint: int) -> Tensor:
    """How the rule-based controllers grow: linear ADD, the fastest ramp, all the way to alpha 1."""
    action = torch.zeros(NUM_HEADS, dtype=torch.int64)
    action[Head.OP] = Op.GERMINATE
    action[Head.SLOT] = slot
    action[Head.BLUEPRINT] = blueprint
    action[Head.STYLE] = Style.LINEAR_ADD
    action[Head.TEMPO] = Tempo.FAST
    action[Head.ALPHA_TARGET] = AlphaTarget.FULL
    return action


def on_slot(op: Op, slot: int) -> Tensor:
    """An op that needs nothing but a slot; a cull is INSTANT."""
    action = torch.zeros(NUM_HEADS, dtype=torch.int64)
    action[Head.OP] = op
    action[Head.SLOT] = slot
    return action
