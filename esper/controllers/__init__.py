"""Controllers, which choose the actions of growth, in one registry.

To add one, write a module and a line in :data:`CONTROLLERS`, or call :func:`register_controller` from your own module.
"""

from __future__ import annotations

from esper.controllers.base import Controller, Stateless, germinate, on_slot, waiting
from esper.controllers.heuristic import Heuristic, HeuristicParameters
from esper.controllers.learned import Learned
from esper.controllers.probe_and_keep import ProbeAndKeep, ProbeAndKeepParameters
from esper.controllers.probe_rule import ProbeRule, ProbeRuleParameters
from esper.controllers.registry import (
    CONTROLLERS,
    ControllerContext,
    build_controller,
    is_users,
    needed_by,
    register_controller,
    tunables,
)
from esper.controllers.schedule import PlannedGermination, Schedule
from esper.controllers.simple import Never, RandomLegal
from esper.controllers.static import Static, everywhere
from esper.controllers.tunable import Choices, GrowthPlan, Number, Space, Tunable, rule
from esper.controllers.tuned import Tuning

__all__ = [
    "CONTROLLERS",
    "Choices",
    "Controller",
    "ControllerContext",
    "GrowthPlan",
    "Heuristic",
    "HeuristicParameters",
    "Learned",
    "Never",
    "Number",
    "PlannedGermination",
    "ProbeAndKeep",
    "ProbeAndKeepParameters",
    "ProbeRule",
    "ProbeRuleParameters",
    "RandomLegal",
    "Schedule",
    "Space",
    "Stateless",
    "Static",
    "Tunable",
    "Tuning",
    "build_controller",
    "everywhere",
    "germinate",
    "is_users",
    "needed_by",
    "on_slot",
    "register_controller",
    "rule",
    "tunables",
    "waiting",
]
