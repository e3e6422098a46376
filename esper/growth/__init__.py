"""The rules of growth: stages, gates, legality and what an action does, for all environments at once.

One environment step is: :func:`apply_actions`; :func:`tick`, then the epoch is trained; :func:`record_parameters` and
:func:`record_gradients`; validation and :func:`record_contributions`; :func:`transition`; :func:`legal`.
"""

from esper.growth.execution import Applied, apply_actions, plant
from esper.growth.gates import GateEvaluation, Verdicts, evaluate_gates
from esper.growth.legality import legal
from esper.growth.measurements import (
    gradient_health,
    record_contributions,
    record_gradients,
    record_parameters,
)
from esper.growth.reports import SeedReport, reports
from esper.growth.stages import NUM_STAGES, REASONS, STAGE_NAMES, AlphaMode, Gate, GrowthRules, Reason, Stage
from esper.growth.state import SlotState
from esper.growth.transitions import Transitions, tick, transition

__all__ = [
    "NUM_STAGES",
    "REASONS",
    "STAGE_NAMES",
    "AlphaMode",
    "Applied",
    "Gate",
    "GateEvaluation",
    "GrowthRules",
    "Reason",
    "SeedReport",
    "SlotState",
    "Stage",
    "Transitions",
    "Verdicts",
    "apply_actions",
    "evaluate_gates",
    "gradient_health",
    "legal",
    "plant",
    "record_contributions",
    "record_gradients",
    "record_parameters",
    "reports",
    "tick",
    "transition",
]
