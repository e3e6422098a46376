"""The controller protocol, shared by the learned policy and every control.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from esper.envs.records import EnvView
from esper.growth.actions import NUM_HEADS, AlphaTarget, Head, Op, Style, Tempo
from esper.runtime.state import State

SICK = 0.5
"""Gradient health below which the rule-based controllers give up a module."""


class Controller(Protocol):
    """Interface of a controller, which chooses one action per environment and step."""

    name: str

    def reset(self, which: Tensor) -> None:
        """Forget the past of the environments ``which: bool [E]``, whose episodes restart."""

    def act(self, view: EnvView) -> Tensor:
        """Choose a legal action for each environment; return ``int64 [E, 8]``, in head order."""

    def state_dict(self) -> State:
        """Return the state that later decisions depend on, without sharing memory; empty if they depend on the view
        alone.
        """

    def load_state_dict(self, state: State) -> None:
        """Restore a state returned by :meth:`state_dict`."""


class Stateless:
    """A controller without memory between decisions."""

    def reset(self, which: Tensor) -> None:
        """Do nothing, because there is no memory."""

    def state_dict(self) -> State:
        """Return an empty state, because the controller has no memory."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing, because there is no state."""


def waiting(num_envs: int) -> Tensor:
    """Return the action WAIT for every environment, ``int64 [E, 8]``."""
    return torch.zeros(num_envs, NUM_HEADS, dtype=torch.int64)


def germinate(slot: int, blueprint: int) -> Tensor:
    """Return the germination used by rule-based controllers: linear ADD, the fastest ramp, up to alpha 1."""
    action = torch.zeros(NUM_HEADS, dtype=torch.int64)
    action[Head.OP] = Op.GERMINATE
    action[Head.SLOT] = slot
    action[Head.BLUEPRINT] = blueprint
    action[Head.STYLE] = Style.LINEAR_ADD
    action[Head.TEMPO] = Tempo.FAST
    action[Head.ALPHA_TARGET] = AlphaTarget.FULL
    return action


def on_slot(op: Op, slot: int) -> Tensor:
    """Return the action for an op that needs only a slot; a cull is INSTANT."""
    action = torch.zeros(NUM_HEADS, dtype=torch.int64)
    action[Head.OP] = op
    action[Head.SLOT] = slot
    return action
