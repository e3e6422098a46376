"""Rules of growth: stages, gates, legality and effects of actions, for all environments at once.

One environment step is: :func:`apply_actions`; :func:`tick`, then the epoch is trained; :func:`record_parameters` and
:func:`record_gradients`; validation and :func:`record_contributions`; :func:`transition`; :func:`legal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.runtime.lazy import names_of

if TYPE_CHECKING:
    from esper.growth.execution import Applied, apply_actions, plant
    from esper.growth.gates import GateEvaluation, GateResults, evaluate_gates
    from esper.growth.legality import legal
    from esper.growth.measurements import (
        gradient_health,
        record_contributions,
        record_gradients,
        record_parameters,
    )
    from esper.growth.reports import SeedReport
    from esper.growth.stages import (
        NUM_STAGES,
        REASONS,
        STAGE_NAMES,
        AlphaMode,
        Gate,
        GrowthRules,
        Incubation,
        Reason,
        Stage,
    )
    from esper.growth.state import SlotState
    from esper.growth.transitions import Transitions, tick, transition
else:
    __getattr__ = names_of(
        __name__,
        {
            "execution": (
                "Applied",
                "apply_actions",
                "plant",
            ),
            "gates": (
                "GateEvaluation",
                "GateResults",
                "evaluate_gates",
            ),
            "legality": ("legal",),
            "measurements": (
                "gradient_health",
                "record_contributions",
                "record_gradients",
                "record_parameters",
            ),
            "reports": ("SeedReport",),
            "stages": (
                "NUM_STAGES",
                "REASONS",
                "STAGE_NAMES",
                "AlphaMode",
                "Gate",
                "GrowthRules",
                "Incubation",
                "Reason",
                "Stage",
            ),
            "state": ("SlotState",),
            "transitions": (
                "Transitions",
                "tick",
                "transition",
            ),
        },
    )

__all__ = [
    "NUM_STAGES",
    "REASONS",
    "STAGE_NAMES",
    "AlphaMode",
    "Applied",
    "Gate",
    "GateEvaluation",
    "GateResults",
    "GrowthRules",
    "Incubation",
    "Reason",
    "SeedReport",
    "SlotState",
    "Stage",
    "Transitions",
    "apply_actions",
    "evaluate_gates",
    "gradient_health",
    "legal",
    "plant",
    "record_contributions",
    "record_gradients",
    "record_parameters",
    "tick",
    "transition",
]
