"""Sources of decisions for a user's network: a controller by name, from a run or checkpoint, or the user's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.blueprints import BLUEPRINTS, blueprint_ids, compatible
from esper.config.growth import SlotsConfig
from esper.config.root import Config
from esper.controllers import Controller, Heuristic, HeuristicParameters, Learned, Never, RandomLegal
from esper.envs.records import EnvSettings
from esper.experiment.acting import env_settings, growth_rules, trained_policy
from esper.experiment.checkpoint import config_of, load_checkpoint
from esper.experiment.shipped import controller_path, shipped_controllers
from esper.grower.modules import Site
from esper.grower.saving import digest
from esper.grower.views import GrowthView
from esper.growth import GrowthRules, Incubation
from esper.growth.actions import FactoredAction
from esper.growth.layouts import FAMILY_LAYOUTS, layout_of
from esper.population import PROBE_NAMES
from esper.runtime.controller_names import LEARNED
from esper.runtime.rng import generator
from esper.runtime.user_code import named

Function = Callable[[GrowthView], FactoredAction | None]

_BUILDERS: dict[str, Callable[[int, GrowthRules, int], Controller]] = {
    "heuristic": lambda num_slots, rules, seed: Heuristic(
        [HeuristicParameters()], num_slots, min(rules.max_seeds, num_slots)
    ),
    "never": lambda num_slots, rules, seed: Never(),
    "random": lambda num_slots, rules, seed: RandomLegal(generator("controller", "random", seed)),
}

_METHODS = ("reset", "act", "state_dict", "load_state_dict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """A source of decisions, with the rules that it needs.

    Attributes:
        name: name in messages and in the sheet.
        controller: a controller of one environment, or
        function: a user's function of the view.
        rules, settings: rules of growth, and settings of measurement.
        blueprints: blueprints that may grow; ``None`` for all that fit.
        choices: blueprints that it can choose at all; ``None`` for every one that is registered.
        family: host family that it was trained on; ``None`` if it depends on none.
        policy: digest of its trained policy; ``None`` if it has none.
    """

    name: str
    controller: Controller | None
    function: Function | None
    rules: GrowthRules
    settings: EnvSettings
    blueprints: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    family: str | None = None
    policy: str | None = None

    @property
    def kind(self) -> str:
        """Name of the kind of controller, which says whose state it can load."""
        return "function" if self.controller is None else self.controller.name


def usual_rules(num_slots: int, **numbers: Any) -> GrowthRules:
    """Return the rules of a run with the default configuration.

    Args:
        num_slots: number of slots.
        **numbers: fields of the rules with other values.

    Raises:
        TypeError: the rules have no such field.
    """
    return replace(growth_rules(Config(slots=SlotsConfig(num_slots=num_slots))), **numbers)


def controller_names() -> tuple[str, ...]:
    """Return the names of all controllers: rules, and trained ones that are shipped."""
    return (*_BUILDERS, *shipped_controllers())


def decider(
    controller: object,
    num_slots: int,
    *,
    seed: int,
    rules: GrowthRules | None,
    incubation: Incubation | None,
    rent_weight: float | None,
) -> Decider:
    """Make a source of decisions.

    Args:
        controller: a name, also of a shipped controller, a checkpoint or run folder, a controller, or a function of
            the view.
        num_slots: S.
        seed: seed of a random controller.
        rules, incubation: replace the defaults, or, with a warning, those of a checkpoint.
        rent_weight: price of size, for a checkpoint or controller that observes it.

    Raises:
        ValueError: unknown, or only for another number of slots.
        TypeError: an object that cannot decide.
    """
    if isinstance(controller, type):
        raise TypeError(f"controller: {controller.__name__} is a class: give an instance of it")
    if isinstance(controller, Path) or (isinstance(controller, str) and controller not in _BUILDERS):
        trained = _trained(controller, num_slots, seed, rent_weight)
        if rules not in (None, trained.rules):
            wanted, its = asdict(rules), asdict(trained.rules)
            names = [name for name, value in its.items() if wanted[name] != value]
            told, instead = (", ".join(f"{name}={each[name]}" for name in names) for each in (its, wanted))
            warnings.warn(f"rules: {trained.name} was trained with {told}, not with {instead}", stacklevel=3)
        if incubation not in (None, trained.settings.incubation):
            its_own = trained.settings.incubation
            warnings.warn(f"incubation: {trained.name} was trained with {its_own}, not with {incubation}", stacklevel=3)
        changed = replace(trained.settings, incubation=incubation or trained.settings.incubation)
        _check_rest(trained.name, changed)
        return replace(trained, rules=rules or trained.rules, settings=changed)
    config = Config(slots=SlotsConfig(num_slots=num_slots))
    numbers = rules or usual_rules(num_slots)
    usual = env_settings(config)
    settings = replace(usual, slot_probes=PROBE_NAMES, incubation=incubation or usual.incubation)
    if isinstance(controller, str):
        _refuse_price(rent_weight, controller)
        built = _BUILDERS[controller](num_slots, numbers, seed)
        return Decider(name=controller, controller=built, function=None, rules=numbers, settings=settings)
    if callable(getattr(controller, "act", None)):
        if rent_weight is not None:
            settings = replace(settings, price=True, rent_weight=rent_weight)
        lacking = [method for method in _METHODS if not callable(getattr(controller, method, None))]
        if lacking or not isinstance(getattr(controller, "name", None), str):
            raise TypeError(
                f"controller: a {type(controller).__name__} has no {(lacking or ['name'])[0]}, which every Controller "
                "has (esper.controllers.base)"
            )
        own: Any = controller
        return Decider(name=own.name, controller=own, function=None, rules=numbers, settings=settings)
    if not callable(controller):
        raise TypeError(
            f"controller: {controller!r:.60} decides nothing: give {', '.join(map(repr, controller_names()))}, "
            "a run folder, a checkpoint, a Controller, or a function of the view"
        )
    _refuse_price(rent_weight, named(controller))
    return Decider(name=named(controller), controller=None, function=controller, rules=numbers, settings=settings)


def _check_rest(name: str, settings: EnvSettings) -> None:
    """Refuse rest that a Grower cannot give its modules: under straight-through, they run in the model's own passes."""
    if settings.incubate_every > 1 and settings.incubation is not Incubation.auxiliary:
        raise ValueError(
            f"incubation: {name} was trained with slots.incubate_every={settings.incubate_every}, which a Grower "
            f"follows only with auxiliary, not with {settings.incubation}"
        )


def _refuse_price(rent_weight: float | None, name: str) -> None:
    """Refuse a price of size for a source of decisions that observes none."""
    if rent_weight is not None:
        raise ValueError(f"rent_weight={rent_weight:g}: {name} observes no price of size: leave it out")


def _price(name: str, config: Config, rent_weight: float | None) -> float:
    """Return the price of size for a controller that was trained with ``config``.

    Raises:
        ValueError: it observes one and none is given, or the other way round.
    """
    known = config.reward.rent_weights or [config.reward.rent_weight]
    if not config.observation.price:
        _refuse_price(rent_weight, name)
        return config.reward.rent_weight
    span = " to ".join(f"{value:g}" for value in sorted({min(known), max(known)}))
    if rent_weight is None:
        raise ValueError(
            f"rent_weight: {name} observes the price of size: give the points that as many parameters as your network "
            f"has must earn, from {span} as in its training"
        )
    if not min(known) <= rent_weight <= max(known):
        warnings.warn(f"rent_weight: {name} was trained with {span}, not with {rent_weight:g}", stacklevel=5)
    return rent_weight


def _trained(source: str | Path, num_slots: int, seed: int, rent_weight: float | None) -> Decider:
    path = controller_path(source)
    if not path.exists():
        raise ValueError(
            f"controller: {str(source)!r} is no checkpoint, run folder or name; the names are "
            f"{', '.join(controller_names())}"
        )
    try:
        record = load_checkpoint(path)
        config = config_of(record, path)
        policy, normaliser = trained_policy(record, config, num_slots)
    except ValueError as error:
        raise ValueError(f"controller: {error}") from error
    if policy.num_slots != num_slots:
        raise ValueError(
            f"controller: {source} was trained for {record['num_slots']} slots, and slots names {num_slots}: name "
            f"{record['num_slots']}"
        )
    stream = generator("controller", LEARNED, seed)
    names = config.slots.blueprints
    return Decider(
        name=str(source),
        controller=Learned(policy, normaliser, 1, generator=stream, greedy=config.evaluation.greedy),
        function=None,
        rules=growth_rules(config),
        settings=replace(
            env_settings(config), shapley_permutations=0, rent_weight=_price(str(source), config, rent_weight)
        ),
        blueprints=None if names is None else tuple(names),
        choices=blueprint_ids()[: policy.num_blueprints],
        family=config.host.name if config.host.name in FAMILY_LAYOUTS else None,
        policy=digest(policy),
    )


def fitting(slots: Sequence[str], sites: Sequence[Site], decider: Decider, blueprints: Sequence[str] | None) -> Tensor:
    """Return the blueprints that may grow at each place, ``bool [S, B]``.

    Args:
        slots: paths, for messages.
        sites: requirements of each place.
        decider: source of decisions, with the blueprints and the family that it was trained on.
        blueprints: blueprints that the user allows; ``None`` for those of the decider.

    Raises:
        ValueError: a blueprint that is unknown, also to the decider, a place without any possible blueprint, or a place
            of a family that the decider was not trained on.
    """
    names = blueprint_ids()
    unknown = [name for name in blueprints or () if name not in names]
    if unknown:
        raise ValueError(f"blueprints: {unknown[0]!r} is unknown; choose from {', '.join(names)}")
    choices = decider.choices or names
    beyond = [name for name in blueprints or () if name not in choices]
    if beyond:
        raise ValueError(
            f"blueprints: {decider.name} was trained without {beyond[0]!r}; choose from {', '.join(choices)}"
        )
    if blueprints is not None and decider.family is not None:
        its = decider.blueprints or [name for name in BLUEPRINTS[decider.family] if name in choices]
        if set(blueprints) != set(its):
            warnings.warn(f"blueprints: {decider.name} was trained with {', '.join(its)}", stacklevel=4)
    allowed = blueprints if blueprints is not None else decider.blueprints or choices
    fits = compatible((site.family, site.channels) for site in sites)
    fits &= torch.tensor([name in allowed for name in names])
    for path, site, row in zip(slots, sites, fits, strict=True):
        if decider.family not in (None, site.family):
            raise ValueError(
                f"controller: {decider.name} was trained on features {layout_of(str(decider.family)).value}, and "
                f"{path!r} returns {layout_of(site.family).value}: choose another controller, or other slots"
            )
        if not row.any():
            able = ", ".join(BLUEPRINTS[site.family])
            raise ValueError(
                f"slots: nothing that may grow fits {path!r}, {layout_of(site.family).value} with C={site.channels}: "
                f"leave it out, or allow some of {able} in blueprints"
            )
    return fits
