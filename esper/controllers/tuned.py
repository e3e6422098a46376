"""Results of tuning: the parameters of the controls, and the cost of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from esper.controllers.registry import tunables

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The best parameters of each control on training instances.

    Attributes:
        budget: environment epochs that each control was given.
        seed: seed of the search.
        experiment: fingerprint of the configuration whose training instances were used.
        slot_ids: slots that the plans number.
        found: parameters by control, without those of controls that were not tuned. Plans may be empty, where growing
            did not pay.
        spent: environment epochs by control. ``schedule_per_family`` evaluates all its candidates on all instances of
            each family in addition to what ``schedule_best`` spent, whatever the budget: it is an upper bound, not a
            rival.
        returns: mean return of the chosen parameters on the instances of their last comparison; for static_full, mean
            val accuracy in points.
    """

    budget: int
    seed: int
    experiment: str
    slot_ids: tuple[str, ...]
    found: Mapping[str, Any] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    returns: Mapping[str, float] = field(default_factory=dict)

    def merged(self, other: Tuning) -> Tuning:
        """Add the controls that only the other tuning has.

        Raises:
            ValueError: the other one belongs to another experiment, or used another budget, so that its controls would
                not be rivals of equal means.
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
            found={**other.found, **self.found},
            spent={**other.spent, **self.spent},
            returns={**other.returns, **self.returns},
        )

    def to_record(self) -> dict[str, Any]:
        """Convert to plain JSON types, ``None`` for controls that were not tuned."""
        return {
            "version": VERSION,
            "budget": self.budget,
            "seed": self.seed,
            "experiment": self.experiment,
            "slot_ids": list(self.slot_ids),
            **{
                name: tunable.to_record(self.found[name]) if name in self.found else None
                for name, tunable in tunables().items()
            },
            "spent": dict(self.spent),
            "returns": dict(self.returns),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Tuning:
        """Rebuild from :meth:`to_record`.

        Raises:
            ValueError: not a record of this version.
        """
        version = record.get("version") if isinstance(record, Mapping) else None
        if version != VERSION:
            raise ValueError(f"not a tuning record of version {VERSION}: its version is {version!r}")
        own = {each.name for each in fields(cls)} - {"found"}
        wrong = (own - set(record)) | (set(record) - own - set(tunables()) - {"version"})
        if wrong:
            raise ValueError(f"tuning record: fields {sorted(wrong)} are missing or unknown")
        try:
            found = {
                name: tunable.from_record(record[name])
                for name, tunable in tunables().items()
                if record.get(name) is not None
            }
        except (TypeError, KeyError) as error:
            raise ValueError(f"tuning record: {error}") from error
        return cls(**{name: record[name] for name in own} | {"slot_ids": tuple(record["slot_ids"]), "found": found})
