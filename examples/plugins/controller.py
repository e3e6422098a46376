"""A controller that grows one module; tuning finds where. Select it by `evaluation.controllers=[one_module]`."""

from collections.abc import Sequence
from dataclasses import dataclass

from esper.controllers import Choices, PlannedGermination, Schedule, Space, register_controller, rule


@dataclass(frozen=True)
class Parameters:
    slot: int = 0


def choices(space: Space) -> Choices:
    return {"slot": range(space.num_slots)}


def build(rows: Sequence[Parameters], space: Space) -> Schedule:
    first = space.compatible.long().argmax(dim=1).tolist()
    return Schedule([[PlannedGermination(0, row.slot, first[row.slot])] for row in rows], "one_module")


register_controller("one_module", rule(Parameters, choices, build))
