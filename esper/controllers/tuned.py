"""What tuning found: the parameters of the controls, and what finding them has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeAlias

from esper.blueprints import blueprint_ids
from esper.controllers.heuristic import HeuristicParameters
from esper.controllers.probe_and_keep import ProbeAndKeepParameters
from esper.controllers.probe_rule import ProbeRuleParameters
from esper.controllers.schedule import PlannedGermination

GrowthPlan: TypeAlias = tuple[PlannedGermination, ...]

VERSION = 1

TUNED = (
    "heuristic",
    "probe_rule",
    "probe_and_keep",
    "schedule_best",
    "schedule_per_family",
    "static_full",
    "static_best",
)
"""Controls that tuning finds parameters for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The best parameters of each control on training instances; ``None`` for controls that were not tuned.

    Attributes:
        budget: environment epochs that each control was given.
        seed: of the search.
        experiment: fingerprint of the configuration whose training instances it was found on.
        slot_ids: slots that the plans number.
        heuristic, probe_rule, probe_and_keep: parameters.
        schedule_best: one plan for all hosts; the empty one if growing did not pay.
        schedule_per_family: a plan for each family of hosts.
        static_full: id of the blueprint that stands in every slot that it fits, by val accuracy.
        static_best: the same, by return.
        spent: environment epochs by control. ``schedule_per_family`` goes through all its candidates on all instances
            of each family on top of what ``schedule_best`` spent, whatever the budget: it is a ceiling, not a rival.
        returns: mean return of what was chosen, on the instances that it was last compared on; of static_full, mean val
            accuracy in points.
    """

    budget: int
    seed: int
    experiment: str
    slot_ids: tuple[str, ...]
    heuristic: HeuristicParameters | None = None
    probe_rule: ProbeRuleParameters | None = None
    probe_and_keep: ProbeAndKeepParameters | None = None
    schedule_best: GrowthPlan | None = None
    schedule_per_family: Mapping[str, GrowthPlan] | None = None
    static_full: str | None = None
    static_best: str | None = None
    spent: Mapping[str, int] = field(default_factory=dict)
    returns: Mapping[str, float] = field(default_factory=dict)

    @property
    def tuned(self) -> frozenset[str]:
        """Controls that have parameters here."""
        return frozenset(name for name in TUNED if getattr(self, name) is not None)

    def merged(self, other: Tuning) -> Tuning:
        """This, with the controls that only the other one has.

        Raises:
            ValueError: the other one belongs to another experiment, or gave its controls another budget: they would not
                be rivals of equal means.
        """
        if (self.experiment, self.slot_ids) != (other.experiment, other.slot_ids):
            raise ValueError("it belongs to another experiment")
        if self.budget != other.budget:
            raise ValueError(
                f"its controls had {other.budget} environment epochs each, the others {self.budget}: tune all with the "
                f"same (tuning_epochs={self.budget})"
            )
        return replace(
            self,
            spent={**other.spent, **self.spent},
            returns={**other.returns, **self.returns},
            **{name: getattr(other, name) for name in other.tuned - self.tuned},
        )

    def to_record(self) -> dict[str, Any]:
        """Plain JSON types."""
        plan, plans = self.schedule_best, self.schedule_per_family
        return {
            "version": VERSION,
            "budget": self.budget,
            "seed": self.seed,
            "experiment": self.experiment,
            "slot_ids": list(self.slot_ids),
            **{name: None if (found := getattr(self, name)) is None else asdict(found) for name in _PARAMETERS},
            "schedule_best": None if plan is None else _plan_record(plan),
            "schedule_per_family": None if plans is None else {name: _plan_record(plans[name]) for name in plans},
            "static_full": self.static_full,
            "static_best": self.static_best,
            "spent": dict(self.spent),
            "returns": dict(self.returns),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Tuning:
        """Inverse of :meth:`to_record`.

        Raises:
            ValueError: not a record of this version.
        """
        version = record.get("version") if isinstance(record, Mapping) else None
        if version != VERSION:
            raise ValueError(f"not a tuning record of version {VERSION}: its version is {version!r}")
        names = {each.name for each in fields(cls)} | {"version"}
        if set(record) != names:
            raise ValueError(f"tuning record: fields {sorted(set(record) ^ names)} are missing or unknown")
        values = {name: value for name, value in record.items() if name != "version"}
        values["slot_ids"] = tuple(values["slot_ids"])
        try:
            for name, kind in _PARAMETERS.items():
                values[name] = None if values[name] is None else kind(**values[name])
            if values["schedule_best"] is not None:
                values["schedule_best"] = _plan(values["schedule_best"])
            plans = values["schedule_per_family"]
            if plans is not None:
                values["schedule_per_family"] = {name: _plan(plan) for name, plan in plans.items()}
        except (TypeError, KeyError) as error:
            raise ValueError(f"tuning record: {error}") from error
        return cls(**values)


_PARAMETERS = {
    "heuristic": HeuristicParameters,
    "probe_rule": ProbeRuleParameters,
    "probe_and_keep": ProbeAndKeepParameters,
}


def _plan_record(plan: GrowthPlan) -> list[dict[str, int | str]]:
    return [{"epoch": step.epoch, "slot": step.slot, "blueprint": blueprint_ids()[step.blueprint]} for step in plan]


def _plan(record: list[dict[str, Any]]) -> GrowthPlan:
    for step in record:
        if step["blueprint"] not in blueprint_ids():
            raise ValueError(
                f"tuning record: unknown blueprint {step['blueprint']!r}; choose from {', '.join(blueprint_ids())}"
            )
    return tuple(
        PlannedGermination(step["epoch"], step["slot"], blueprint_ids().index(step["blueprint"])) for step in record
    )
