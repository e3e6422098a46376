"""Controllers: one registry. Adding one is a module and a line in :data:`CONTROLLERS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.controllers.base import Controller
from esper.controllers.heuristic import Heuristic
from esper.controllers.learned import Learned
from esper.controllers.schedule import PlannedGermination, Schedule
from esper.controllers.simple import Never, RandomLegal
from esper.policy import GrowthPolicy, Normaliser
from esper.rng import generator


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What a controller may be built from.

    Attributes:
        num_envs, num_slots: E and S.
        seed: RNG seed of those that draw.
        schedule: plan of the schedule controller.
        policy, normaliser: of the learned controller.
        deterministic: whether the learned controller takes its most probable actions.
    """

    num_envs: int
    num_slots: int
    seed: int
    schedule: Sequence[PlannedGermination]
    policy: GrowthPolicy
    normaliser: Normaliser
    deterministic: bool


def _learned(context: ControllerContext) -> Controller:
    return Learned(
        context.policy,
        context.normaliser,
        context.num_envs,
        generator=generator("controller", "learned", context.seed),
        deterministic=context.deterministic,
    )


CONTROLLERS: dict[str, Callable[[ControllerContext], Controller]] = {
    "learned": _learned,
    "heuristic": lambda context: Heuristic(context.num_envs, context.num_slots),
    "schedule": lambda context: Schedule(context.schedule, context.num_envs),
    "random": lambda context: RandomLegal(generator("controller", "random", context.seed)),
    "never": lambda context: Never(),
}


def build_controller(name: str, context: ControllerContext) -> Controller:
    """The controller of that name; raises ``ValueError`` naming the choices."""
    if name not in CONTROLLERS:
        raise ValueError(f"unknown controller {name!r}; choose from {', '.join(CONTROLLERS)}")
    return CONTROLLERS[name](context)


__all__ = [
    "CONTROLLERS",
    "Controller",
    "ControllerContext",
    "Heuristic",
    "Learned",
    "Never",
    "PlannedGermination",
    "RandomLegal",
    "Schedule",
    "build_controller",
]
