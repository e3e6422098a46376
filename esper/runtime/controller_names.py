"""Names of controllers that other code refers to: registered ones, and one that only evaluations have."""

from __future__ import annotations

LEARNED = "learned"
"""The learned controller with its most probable actions."""

SAMPLED = "learned_sampled"
"""The learned controller with sampled actions; a row of evaluations without a registry entry."""

NEVER = "never"
"""The control that never grows."""

RANDOM = "random"
"""The control that draws among legal actions."""

SCHEDULE = "schedule"
"""The control that follows a plan given in the configuration."""

SCHEDULE_BEST = "schedule_best"
"""The control that follows the best plan for all hosts."""

SCHEDULE_PER_FAMILY = "schedule_per_family"
"""The control that is told the host's family and follows the best plan for it."""

STATIC_FINAL = "static_final"
"""The control that trains the learned controller's final networks from their first epoch."""

OF_RUNS = (LEARNED, SAMPLED, STATIC_FINAL)
"""Controllers that differ between run seeds."""
