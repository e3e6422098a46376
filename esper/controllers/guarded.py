"""Calls of controllers that report an error in a user's controller in one line.

Axis legend: E = environments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.controllers.base import Controller
from esper.envs.records import EnvView
from esper.growth.actions import HEADS, NUM_HEADS, head_sizes
from esper.runtime.user_code import UsersCodeError, is_ours, named, of_the_user


def start_anew(controller: Controller, which: Tensor) -> None:
    """Call :meth:`Controller.reset` for the environments ``which: bool [E]``.

    Raises:
        UsersCodeError: a user's controller failed.
    """
    if is_ours(type(controller)):
        controller.reset(which)
        return
    with of_the_user(f"{_called(controller)}.reset"):
        controller.reset(which)


def decide(controller: Controller, view: EnvView) -> Tensor:
    """Call :meth:`Controller.act` and check its actions, ``int64 [E, 8]``.

    Raises:
        UsersCodeError: a user's controller failed, or returned no valid actions.
    """
    if is_ours(type(controller)):
        return controller.act(view)
    what = f"{_called(controller)}.act"
    with of_the_user(what):
        actions = controller.act(view)
    _check(what, actions, view)
    return actions


def _check(what: str, actions: object, view: EnvView) -> None:
    """Refuse actions that are not ``int64 [E, 8]``, or that name a choice that a head does not have."""
    wanted = [view.state.num_envs, NUM_HEADS]
    if not isinstance(actions, Tensor):
        raise UsersCodeError(f"{what} must return a tensor, int64 {wanted}, not a {type(actions).__name__}")
    if actions.dtype != torch.int64 or list(actions.shape) != wanted or actions.device.type != "cpu":
        found = f"{str(actions.dtype).removeprefix('torch.')} {list(actions.shape)} on {actions.device.type}"
        raise UsersCodeError(f"{what} must return int64 {wanted} on the cpu, got {found}")
    sizes = head_sizes(len(view.slot_ids), view.observation.masks.blueprint.shape[-1])
    outside = ((actions < 0) | (actions >= torch.tensor(sizes))).nonzero().tolist()
    if outside:
        environment, head = outside[0]
        raise UsersCodeError(
            f"{what} chooses {int(actions[environment, head])} for the head {HEADS[head]!r} of environment "
            f"{environment}, which has 0 to {sizes[head] - 1}"
        )


def _called(controller: Controller) -> str:
    return f"controller {controller.name!r}: {named(type(controller))}"
