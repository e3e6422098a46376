"""Terms of a slot's life: stages, alpha modes and gates, and the numeric rules of growth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Stage(IntEnum):
    """Stage of a slot. The index is the position in the one-hot feature."""

    UNKNOWN = 0
    """Result of decoding a corrupt record; no slot of a running environment has it."""
    DORMANT = 1
    GERMINATED = 2
    TRAINING = 3
    BLENDING = 4
    HOLDING = 5
    FOSSILIZED = 6
    CULLED = 7
    EMBARGOED = 8
    RESETTING = 9


STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in Stage)
NUM_STAGES = len(Stage)


class AlphaMode(IntEnum):
    """Change of alpha at the next tick: none, one epoch of a ramp, or a jump to its target."""

    HOLD = 0
    RAMP = 1
    STEP = 2


class Gate(IntEnum):
    """Conditions of a transition, named by the stage that they lead to. There is no G4."""

    G0 = 0
    """Into GERMINATED: the blueprint fits the place."""
    G1 = 1
    """Into TRAINING: parameters allocated and finite."""
    G2 = 2
    """Into BLENDING: trained long enough, gradients measured and healthy, a kept place free."""
    G3 = 3
    """Into HOLDING: alpha has reached its target."""
    G5 = 5
    """Into FOSSILIZED: contribution measured since the ramp ended."""


class Incubation(StrEnum):
    """Source of the gradient of an isolated seed module: a pass of its own, or the host's pass."""

    auxiliary = "auxiliary"
    straight_through = "straight_through"


class Reason(IntEnum):
    """Reason why a gate failed, with texts in :data:`REASONS`."""

    PASSED = 0
    INCOMPATIBLE = 1
    NOT_FINITE = 2
    DWELL = 3
    GRADIENT_UNMEASURED = 4
    GRADIENT_UNHEALTHY = 5
    NO_PLACE = 6
    ALPHA = 7
    CONTRIBUTION_UNMEASURED = 8


REASONS: tuple[str, ...] = (
    "passed",
    "blueprint does not fit the place",
    "parameters not allocated or not finite",
    "fewer than min_training_epochs since the last dwell restart",
    "gradients not measured",
    "gradient health below min_gradient_health",
    "max_seeds modules are kept already",
    "alpha has not reached its target",
    "contribution not measured since the ramp ended",
)
assert len(REASONS) == len(Reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRules:
    """Numeric rules of growth.

    Attributes:
        max_developing: modules in GERMINATED and TRAINING at once, per environment.
        max_seeds: modules in BLENDING, HOLDING, FOSSILIZED or fading at once, per environment.
        min_training_epochs: trained epochs since the last dwell restart before G2.
        min_cull_age: trained epochs before CULL.
        embargo_epochs: epochs of EMBARGOED.
        resetting_epochs: epochs of RESETTING.
        min_gradient_health: least health that passes G2, in [0, 1].
        vanish_norm: gradient norms below it are vanishing.
        explode_norm: gradient norms above it are exploding.
    """

    max_developing: int
    max_seeds: int
    min_training_epochs: int
    min_cull_age: int
    embargo_epochs: int
    resetting_epochs: int
    min_gradient_health: float
    vanish_norm: float
    explode_norm: float
