"""Controllers with parameters to tune on training instances.

Axis legend: S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.controllers.base import Controller
from esper.controllers.schedule import PlannedGermination
from esper.envs.records import EpisodeRecord
from esper.runtime.choices import known
from esper.runtime.user_code import is_ours, named, of_the_user

if TYPE_CHECKING:
    from esper.controllers.registry import ControllerContext

T = TypeVar("T")

GrowthPlan: TypeAlias = tuple[PlannedGermination, ...]

Choices = Mapping[str, Sequence[Any]]
"""Values that each field of some parameters may take."""

Number = Callable[[EpisodeRecord], float]
"""Score of an episode, by which candidates are compared; higher is better."""

KEEP_POINTS = (-1.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Contributions in points that a search tries as the threshold for keeping a module."""


@dataclass(frozen=True, slots=True)
class Space:
    """Slots of an experiment and the modules that may grow there.

    Attributes:
        slot_ids: slot ids in canonical order.
        compatible: ``bool [S, B]``, blueprints that fit each slot.
        max_seeds: largest number of kept modules.
        num_epochs: host epochs of an episode.
    """

    slot_ids: Sequence[str]
    compatible: Tensor
    max_seeds: int
    num_epochs: int

    @property
    def num_slots(self) -> int:
        """Number of slots, S."""
        return len(self.slot_ids)

    @property
    def blueprints(self) -> tuple[str, ...]:
        """Ids of the blueprints that fit at least one slot."""
        return tuple(blueprint_ids()[index] for index in self.compatible.any(dim=0).nonzero().flatten().tolist())


class Search(Protocol):
    """Search for parameters, as :class:`esper.evaluation.tuning.search.Search` offers it to registry entries."""

    found: dict[str, Any]
    """Parameters found so far, by control."""

    @property
    def space(self) -> Space:
        """Slots, and the modules that may grow there."""

    def rule(
        self,
        name: str,
        parameters: Callable[..., Any],
        choices: Choices,
        controller: Callable[[Sequence[Any]], Controller],
    ) -> Any:
        """Search parameters among the choices of each field."""

    def schedule_best(self) -> GrowthPlan:
        """Search the best plan for all hosts."""

    def schedule_per_family(self, best: GrowthPlan) -> dict[str, GrowthPlan]:
        """Search the best plan for each family of hosts."""

    def static(self, name: str, number: Number) -> str:
        """Search the best blueprint of a static network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """Registry entry for a controller with parameters to tune.

    Attributes:
        code: function or class that identifies the controller in messages.
        build: function of a context and parameters that returns the controller.
        search: function of a search and the controller's name that returns the best parameters.
        usual: function that returns default parameters; ``None`` if the controller cannot be played without a search.
        to_record, from_record: conversions of parameters to plain JSON types and back.
        after: controls that must be tuned before this one.
    """

    code: Callable[..., Any]
    build: Callable[[ControllerContext, Any], Controller]
    search: Callable[[Search, str], Any]
    usual: Callable[[], Any] | None = None
    to_record: Callable[[Any], Any] = lambda found: found
    from_record: Callable[[Any], Any] = lambda record: record
    after: tuple[str, ...] = ()


def rule(
    parameters: Callable[..., Any],
    choices: Callable[[Space], Choices],
    controller: Callable[[Sequence[Any], Space], Controller],
    *,
    needs_search: bool = False,
) -> Tunable:
    """Describe a controller with a dataclass of parameters, for :func:`~esper.controllers.register_controller`.

    Args:
        parameters: frozen dataclass whose fields have defaults of plain JSON types.
        choices: function of the space that returns the values to try for each field.
        controller: function that returns the controller from one set of parameters per environment.
        needs_search: refuse to play with the defaults if no search was made.

    Raises:
        ValueError: ``parameters`` is not a dataclass, or a field has no default.
    """
    names = _fields_with_defaults(parameters)

    def tried(space: Space) -> Choices:
        found = _guarded(choices, space)
        for name in found:
            known(f"plugins: {named(choices)}: field of {named(parameters)}", name, names)
        return found

    return Tunable(
        code=controller,
        build=lambda context, found: controller([found] * context.num_envs, context.space),
        search=lambda search, name: search.rule(
            name, parameters, tried(search.space), lambda rows: _guarded(controller, rows, search.space)
        ),
        usual=None if needs_search else parameters,
        to_record=asdict,
        from_record=lambda record: parameters(**record),
    )


def _fields_with_defaults(parameters: Callable[..., Any]) -> list[str]:
    if not is_dataclass(parameters):
        raise ValueError(f"rule: the parameters must be a dataclass, got {parameters!r}")
    for each in fields(parameters):
        if each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"rule: {named(parameters)}.{each.name} has no default, with which a training could play")
    return [each.name for each in fields(parameters)]


def _guarded(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function; report an error in a user's function in one line."""
    if is_ours(function):
        return function(*arguments)
    with of_the_user(f"plugins: {named(function)}"):
        return function(*arguments)


def plan_record(plan: GrowthPlan) -> list[dict[str, int | str]]:
    """Convert a plan to plain JSON types."""
    return [{"epoch": step.epoch, "slot": step.slot, "blueprint": blueprint_ids()[step.blueprint]} for step in plan]


def plan_from_record(record: list[dict[str, Any]]) -> GrowthPlan:
    """Rebuild a plan from :func:`plan_record`.

    Raises:
        ValueError: unknown blueprint.
    """
    for step in record:
        if step["blueprint"] not in blueprint_ids():
            raise ValueError(
                f"tuning record: unknown blueprint {step['blueprint']!r}; choose from {', '.join(blueprint_ids())}"
            )
    return tuple(
        PlannedGermination(step["epoch"], step["slot"], blueprint_ids().index(step["blueprint"])) for step in record
    )
