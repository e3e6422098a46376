"""The registry of controllers, and the ingredients that they are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from esper.blueprints import blueprint_ids
from esper.controllers import heuristic, probe_and_keep, probe_rule
from esper.controllers.base import Controller
from esper.controllers.learned import Learned
from esper.controllers.schedule import PlannedGermination, Schedule
from esper.controllers.simple import Never, RandomLegal
from esper.controllers.static import Static, everywhere
from esper.controllers.tunable import GrowthPlan, Space, Tunable, plan_from_record, plan_record
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.controller_names import (
    LEARNED,
    NEVER,
    RANDOM,
    SCHEDULE,
    SCHEDULE_BEST,
    SCHEDULE_PER_FAMILY,
    STATIC_FINAL,
)
from esper.runtime.options import Greedy
from esper.runtime.registry import Registry
from esper.runtime.rng import generator
from esper.runtime.user_code import is_ours, of_the_user

if TYPE_CHECKING:
    from esper.controllers.tuned import Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """Ingredients for building a controller.

    Attributes:
        num_envs: E.
        space: slots, and the modules that may grow there.
        seed: RNG seed of random controllers.
        schedule: plan of the schedule controller.
        policy, normaliser: parts of the learned controller.
        deterministic: let the learned controller take its most probable actions.
        greedy: rule for its op then.
        families: host family of each environment, for ``schedule_per_family``.
        tuning: parameters found on training instances, if there was a search.
        learned_kept: slot ids and blueprints that the learned controller kept in each environment, if it has played.
    """

    num_envs: int
    space: Space
    seed: int
    schedule: Sequence[PlannedGermination]
    policy: GrowthPolicy
    normaliser: Normaliser
    deterministic: bool
    greedy: Greedy
    families: Sequence[str] = ()
    tuning: Tuning | None = None
    learned_kept: Sequence[Sequence[tuple[str, str]]] | None = None

    def parameters(self, name: str, tunable: Tunable) -> Any:
        """Return the tuned parameters of a controller, or its default ones if none were tuned.

        Raises:
            ValueError: a controller without defaults was not tuned, or the tuning was for other slots.
        """
        tuning = self.tuning
        if tuning is None or name not in tuning.found:
            if tunable.usual is None:
                raise ValueError(f"the controller {name!r} needs parameters tuned on training instances")
            return tunable.usual()
        if tuning.slot_ids != tuple(self.space.slot_ids):
            raise ValueError(
                f"the tuning is for slots {', '.join(tuning.slot_ids)}, not for {', '.join(self.space.slot_ids)}"
            )
        return tuning.found[name]


Builder = Callable[[ControllerContext], Controller]


def _learned(context: ControllerContext) -> Controller:
    return Learned(
        context.policy,
        context.normaliser,
        context.num_envs,
        generator=generator("controller", LEARNED, context.seed),
        deterministic=context.deterministic,
        greedy=context.greedy,
    )


def _static_final(context: ControllerContext) -> Controller:
    if context.learned_kept is None:
        raise ValueError("the controller 'static_final' needs 'learned' beside it, whose final networks it trains anew")
    slots, blueprints = list(context.space.slot_ids), blueprint_ids()
    modules = [
        [(slots.index(slot_id), blueprints.index(name)) for slot_id, name in kept] for kept in context.learned_kept
    ]
    return Static(modules, STATIC_FINAL)


def _schedule_best(context: ControllerContext, plan: GrowthPlan) -> Controller:
    return Schedule([plan] * context.num_envs, SCHEDULE_BEST)


def _schedule_per_family(context: ControllerContext, plans: dict[str, GrowthPlan]) -> Controller:
    missing = sorted(set(context.families) - set(plans))
    if missing:
        raise ValueError(
            f"schedule_per_family has no plan for hosts of family {', '.join(missing)}; "
            f"it was tuned on {', '.join(plans)}"
        )
    assert len(context.families) == context.num_envs, "the family of every host must be known"
    return Schedule([plans[family] for family in context.families], SCHEDULE_PER_FAMILY)


def _static(name: str, context: ControllerContext, blueprint: str) -> Controller:
    return Static([everywhere(blueprint, context.space.compatible)] * context.num_envs, name)


CONTROLLERS: Registry[Builder | Tunable] = Registry(
    "controller",
    {
        LEARNED: _learned,
        "heuristic": heuristic.TUNABLE,
        "probe_rule": probe_rule.TUNABLE,
        "probe_and_keep": probe_and_keep.TUNABLE,
        SCHEDULE: lambda context: Schedule([context.schedule] * context.num_envs),
        SCHEDULE_BEST: Tunable(
            code=Schedule,
            build=_schedule_best,
            search=lambda search, name: search.schedule_best(),
            to_record=plan_record,
            from_record=plan_from_record,
        ),
        SCHEDULE_PER_FAMILY: Tunable(
            code=Schedule,
            build=_schedule_per_family,
            search=lambda search, name: search.schedule_per_family(search.found[SCHEDULE_BEST]),
            to_record=lambda plans: {family: plan_record(plan) for family, plan in plans.items()},
            from_record=lambda record: {family: plan_from_record(plan) for family, plan in record.items()},
            after=(SCHEDULE_BEST,),
        ),
        RANDOM: lambda context: RandomLegal(generator("controller", "random", context.seed)),
        NEVER: lambda context: Never(),
        STATIC_FINAL: _static_final,
        "static_full": Tunable(
            code=Static,
            build=partial(_static, "static_full"),
            search=lambda search, name: search.static(name, lambda episode: 100 * episode.val_accuracy),
        ),
        "static_best": Tunable(
            code=Static,
            build=partial(_static, "static_best"),
            search=lambda search, name: search.static(name, lambda episode: episode.episode_return),
        ),
    },
    functions=lambda entry: (entry.code if isinstance(entry, Tunable) else entry,),
)


def register_controller(name: str, build: Builder | Tunable) -> None:
    """Register a controller for the closing tables of training and of evaluations.

    Args:
        name: name in the configuration.
        build: function of a context that returns the controller, or a :func:`~esper.controllers.rule` with parameters
            to tune.

    Raises:
        ValueError: a name that is not an identifier or belongs to another controller, or a builder that is not a
            function.
    """
    CONTROLLERS.register(name, build)


def tunables() -> dict[str, Tunable]:
    """Return the controllers with parameters to tune, by name."""
    return {name: entry for name, entry in CONTROLLERS.items() if isinstance(entry, Tunable)}


def needed_by(name: str) -> str | None:
    """Return the ingredient of a controller that only an evaluation has, or ``None``."""
    entry = CONTROLLERS[name]
    if isinstance(entry, Tunable) and entry.usual is None:
        return "parameters tuned on training instances"
    return "the networks that a trained controller ended with" if name == STATIC_FINAL else None


def is_users(name: str) -> bool:
    """Return ``True`` for a controller that a user's module registered."""
    entry = CONTROLLERS[name]
    return not is_ours(entry.code if isinstance(entry, Tunable) else entry)


def _tuned(tunable: Tunable, found: Any, context: ControllerContext) -> Controller:
    return tunable.build(context, found)


def build_controller(name: str, context: ControllerContext) -> Controller:
    """Build the controller with a name; raise ``ValueError`` with the choices, or with what is missing or wrong."""
    entry = CONTROLLERS.find(name)
    if isinstance(entry, Tunable):
        build: Builder = partial(_tuned, entry, context.parameters(name, entry))
    else:
        build = entry
    if not is_users(name):
        return build(context)
    what = f"controller {name!r}: {CONTROLLERS.where(entry)}"
    with of_the_user(what):
        controller = build(context)
    lacking = [method for method in ("reset", "act") if not callable(getattr(controller, method, None))]
    if lacking or not isinstance(getattr(controller, "name", None), str):
        lacks = ", ".join(lacking) or "name"
        raise ValueError(f"{what} returns a {type(controller).__name__}, which is no Controller: it has no {lacks}")
    return controller
