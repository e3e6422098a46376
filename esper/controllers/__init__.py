"""Controllers: one registry. Adding one is a module and a line in :data:`CONTROLLERS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import Controller
from esper.controllers.heuristic import Heuristic, HeuristicParameters
from esper.controllers.learned import Learned
from esper.controllers.probe_and_keep import ProbeAndKeep, ProbeAndKeepParameters
from esper.controllers.probe_rule import ProbeRule, ProbeRuleParameters
from esper.controllers.schedule import PlannedGermination, Schedule
from esper.controllers.simple import Never, RandomLegal
from esper.controllers.static import Static
from esper.controllers.tuned import TUNED, GrowthPlan, Tuning
from esper.envs.records import PlantedModule
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.rng import generator
from esper.runtime.user_code import is_ours, named, of_the_user

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What a controller may be built from.

    Attributes:
        num_envs: E.
        slot_ids: in canonical order.
        compatible: ``bool [S, B]``, blueprints that fit each slot.
        max_seeds: modules that may be kept.
        seed: RNG seed of those that draw.
        schedule: plan of the schedule controller.
        policy, normaliser: of the learned controller.
        deterministic: whether the learned controller takes its most probable actions.
        families: of each environment's host, for the oracle that knows them.
        tuning: parameters found on training instances, if there was a search.
        learned_kept: slot ids and blueprints that the learned controller kept in each environment, if it has played.
    """

    num_envs: int
    slot_ids: Sequence[str]
    compatible: Tensor
    max_seeds: int
    seed: int
    schedule: Sequence[PlannedGermination]
    policy: GrowthPolicy
    normaliser: Normaliser
    deterministic: bool
    families: Sequence[str] = ()
    tuning: Tuning | None = None
    learned_kept: Sequence[Sequence[tuple[str, str]]] | None = None

    @property
    def num_slots(self) -> int:
        return len(self.slot_ids)

    def tuned(self, name: str, found: Callable[[Tuning], T | None]) -> T:
        """What tuning found for a control.

        Raises:
            ValueError: there was no tuning, or not of this control, or it was for other slots.
        """
        value = None if self.tuning is None else found(self.tuning)
        if self.tuning is None or value is None:
            raise ValueError(f"the controller {name!r} needs parameters tuned on training instances")
        if self.tuning.slot_ids != tuple(self.slot_ids):
            raise ValueError(
                f"the tuning is for slots {', '.join(self.tuning.slot_ids)}, not for {', '.join(self.slot_ids)}"
            )
        return value


def _learned(context: ControllerContext) -> Controller:
    return Learned(
        context.policy,
        context.normaliser,
        context.num_envs,
        generator=generator("controller", "learned", context.seed),
        deterministic=context.deterministic,
    )


def _heuristic(context: ControllerContext) -> Controller:
    """With its usual thresholds where none were tuned."""
    tuned = None if context.tuning is None else context.tuning.heuristic
    return Heuristic([tuned or HeuristicParameters()] * context.num_envs, context.num_slots, context.max_seeds)


def _probe_rule(context: ControllerContext) -> Controller:
    tuned = context.tuned("probe_rule", lambda tuning: tuning.probe_rule)
    return ProbeRule([tuned] * context.num_envs)


def _probe_and_keep(context: ControllerContext) -> Controller:
    tuned = context.tuned("probe_and_keep", lambda tuning: tuning.probe_and_keep)
    return ProbeAndKeep([tuned] * context.num_envs, context.num_slots, context.max_seeds)


def _schedule_best(context: ControllerContext) -> Controller:
    plan = context.tuned("schedule_best", lambda tuning: tuning.schedule_best)
    return Schedule([plan] * context.num_envs, "schedule_best")


def _schedule_per_family(context: ControllerContext) -> Controller:
    plans = context.tuned("schedule_per_family", lambda tuning: tuning.schedule_per_family)
    missing = sorted(set(context.families) - set(plans))
    if missing:
        raise ValueError(
            f"schedule_per_family has no plan for hosts of family {', '.join(missing)}; "
            f"it was tuned on {', '.join(plans)}"
        )
    assert len(context.families) == context.num_envs, "an oracle has to know the family of every host"
    return Schedule([plans[family] for family in context.families], "schedule_per_family")


def _static_full(context: ControllerContext) -> Controller:
    blueprint = context.tuned("static_full", lambda tuning: tuning.static_full)
    return Static([everywhere(blueprint, context.compatible)] * context.num_envs, "static_full")


def _static_best(context: ControllerContext) -> Controller:
    blueprint = context.tuned("static_best", lambda tuning: tuning.static_best)
    return Static([everywhere(blueprint, context.compatible)] * context.num_envs, "static_best")


def _static_final(context: ControllerContext) -> Controller:
    if context.learned_kept is None:
        raise ValueError("the controller 'static_final' needs 'learned' beside it, whose final networks it trains anew")
    slots, blueprints = list(context.slot_ids), blueprint_ids()
    modules = [
        [(slots.index(slot_id), blueprints.index(name)) for slot_id, name in kept] for kept in context.learned_kept
    ]
    return Static(modules, "static_final")


def everywhere(blueprint: str, compatible: Tensor) -> list[PlantedModule]:
    """One blueprint, by id, in every slot that it fits."""
    index = blueprint_ids().index(blueprint)
    return [(slot, index) for slot in compatible[:, index].nonzero().flatten().tolist()]


CONTROLLERS: dict[str, Callable[[ControllerContext], Controller]] = {
    "learned": _learned,
    "heuristic": _heuristic,
    "probe_rule": _probe_rule,
    "probe_and_keep": _probe_and_keep,
    "schedule": lambda context: Schedule([context.schedule] * context.num_envs),
    "schedule_best": _schedule_best,
    "schedule_per_family": _schedule_per_family,
    "random": lambda context: RandomLegal(generator("controller", "random", context.seed)),
    "never": lambda context: Never(),
    "static_final": _static_final,
    "static_full": _static_full,
    "static_best": _static_best,
}

AFTER_TRAINING: dict[str, str] = {
    **{name: "parameters tuned on training instances" for name in TUNED if name != "heuristic"},
    "static_final": "the networks that a trained controller ended with",
}
"""Controls that need more than a run of training has, and what; they belong to ``python -m esper.evaluate``."""


def build_controller(name: str, context: ControllerContext) -> Controller:
    """The controller of that name; raises ``ValueError`` naming the choices, or what is missing or wrong."""
    if name not in CONTROLLERS:
        raise ValueError(f"unknown controller {name!r}; choose from {', '.join(CONTROLLERS)}")
    build = CONTROLLERS[name]
    if is_ours(build):
        return build(context)
    what = f"controller {name!r}: {named(build)}"
    with of_the_user(what):
        controller = build(context)
    lacking = [method for method in ("reset", "act") if not callable(getattr(controller, method, None))]
    if lacking or not isinstance(getattr(controller, "name", None), str):
        lacks = ", ".join(lacking) or "name"
        raise ValueError(f"{what} returns a {type(controller).__name__}, which is no Controller: it has no {lacks}")
    return controller


__all__ = [
    "AFTER_TRAINING",
    "CONTROLLERS",
    "TUNED",
    "Controller",
    "ControllerContext",
    "GrowthPlan",
    "Heuristic",
    "HeuristicParameters",
    "Learned",
    "Never",
    "PlannedGermination",
    "ProbeAndKeep",
    "ProbeAndKeepParameters",
    "ProbeRule",
    "ProbeRuleParameters",
    "RandomLegal",
    "Schedule",
    "Static",
    "Tuning",
    "build_controller",
    "everywhere",
]
