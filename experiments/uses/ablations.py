"""A plugin with the learned controller deprived of one thing it may use: its memory, or a group of its features.

Features of a group are swapped between hosts: every host shows those of another one in the same epoch, so that each
number is as likely as before and only tells nothing about its host.

Axis legend: E = environments, S = slots, D = features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esper.controllers import ControllerContext, Learned, register_controller
from esper.envs.features import feature_table
from esper.envs.records import EnvView
from esper.population import PROBE_NAMES
from esper.runtime.rng import generator
from esper.runtime.state import State

CONTRIBUTIONS = ("contribution", "contribution_velocity", "interaction", "boost", "freshness")
GRADIENTS = ("gradient_norm", "gradient_health", "previous_health", "vanishing", "exploding")


def _of_curve(name: str) -> bool:
    return name.startswith(("val_", "best_")) or name in ("plateau_epochs", "stabilised")


def _of_module(name: str) -> bool:
    known = _of_curve(name) or name in ("epoch", "price", *CONTRIBUTIONS, *GRADIENTS, *PROBE_NAMES)
    return not known


GROUPS: Mapping[str, Callable[[str], bool]] = {
    "epoch": lambda name: name == "epoch",
    "curve": _of_curve,
    "modules": _of_module,
    "contributions": lambda name: name in CONTRIBUTIONS,
    "gradients": lambda name: name in GRADIENTS,
    "probes": lambda name: name in PROBE_NAMES,
    **{name: partial(str.__eq__, name) for name in PROBE_NAMES},
}
"""Groups of features, each as a test of a feature's name without its slot. All but the last four have none in common;
``modules`` is what the controller has done: stages, alphas, ages, added parameters, the last op.
"""


class Ablated(Learned):
    """The learned controller of an evaluation, which reads other features than those of its hosts.

    Args:
        context: context of the evaluation.
    """

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(
            context.policy,
            context.normaliser,
            context.num_envs,
            generator=generator("controller", self.name, context.seed),
            greedy=context.greedy,
            deterministic=context.deterministic,
        )

    def act(self, view: EnvView) -> Tensor:
        features = self.read(view, view.observation.features.clone())
        return super().act(replace(view, observation=replace(view.observation, features=features)))

    def read(self, view: EnvView, features: Tensor) -> Tensor:
        """Return what the controller reads in place of ``float32 [E, D]``, which it may change."""
        return features


class Forgetful(Ablated):
    """The learned controller with the state of its LSTM set to zero before every decision."""

    name = "learned_forgetful"

    def read(self, view: EnvView, features: Tensor) -> Tensor:
        self._hidden = self._policy.initial_state(view.state.num_envs)
        return features


class Swapped(Ablated):
    """The learned controller that reads a group of features of another host than the one it acts on.

    Hosts stand in a circle, in random order, and each shows the features of the next, throughout an evaluation.

    Args:
        group: one of :data:`GROUPS`.
        context: context of the evaluation.

    Raises:
        ValueError: there is no other host, or no feature of the group.
    """

    def __init__(self, group: str, context: ControllerContext) -> None:
        self.name, self._group = f"swapped_{group}", group
        super().__init__(context)
        if context.num_envs < 2:
            raise ValueError(f"{self.name} needs two hosts to swap features between, got {context.num_envs}")
        order = torch.randperm(context.num_envs, generator=generator("swapped features", context.seed))
        self._next = torch.empty_like(order)
        self._next[order] = order.roll(-1)

    def read(self, view: EnvView, features: Tensor) -> Tensor:
        columns = _columns(view, self._group)
        features[:, columns] = features[self._next[:, None], columns]
        return features


class FrozenProbes(Ablated):
    """The learned controller that sees the slot probes as they were before the first epoch, in every epoch."""

    name = "frozen_probes"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._first: Tensor | None = None
        self._new = torch.ones(context.num_envs, dtype=torch.bool)

    def reset(self, which: Tensor) -> None:
        super().reset(which)
        self._new = self._new | which

    def read(self, view: EnvView, features: Tensor) -> Tensor:
        columns = _columns(view, "probes")
        now = features[:, columns]
        self._first = now if self._first is None else torch.where(self._new[:, None], now, self._first)
        self._new = torch.zeros_like(self._new)
        features[:, columns] = self._first
        return features

    def state_dict(self) -> State:
        first = None if self._first is None else self._first.clone()
        return {**super().state_dict(), "first": first, "new": self._new.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._first, self._new = state["first"], state["new"].clone()


def _columns(view: EnvView, group: str) -> Tensor:
    """Return the columns of a group, ``int64 [n]``."""
    table = feature_table(len(view.slot_ids), view.slot_probes, view.rents is not None)
    found = [feature.index for feature in table if GROUPS[group](feature.name.rpartition(".")[2])]
    if not found:
        raise ValueError(f"the observation has no feature of the group {group}")
    return torch.tensor(found)


ABLATIONS: Mapping[str, Callable[[ControllerContext], Learned]] = {
    Forgetful.name: Forgetful,
    FrozenProbes.name: FrozenProbes,
    **{f"swapped_{group}": partial(Swapped, group) for group in GROUPS},
}
"""Constructors by name of controller."""

for _name, _build in ABLATIONS.items():
    register_controller(_name, _build)
