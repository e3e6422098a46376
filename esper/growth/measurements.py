"""Recording of measurements in the slot state. NaN means "not measured" everywhere.

Axis legend: E = environments, S = slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.growth.gates import at_target
from esper.growth.stages import GrowthRules, Stage
from esper.growth.state import SlotState, stage_table

_BLENDED = stage_table(Stage.BLENDING, Stage.HOLDING)


def record_parameters(state: SlotState, num_parameters: Tensor, finite: Tensor) -> None:
    """Record the size of each module, and whether all its parameters are finite.

    Args:
        num_parameters: ``int64 [E, S]``.
        finite: ``bool [E, S]``. Both are ignored where there is no module.
    """
    state.assign(state.present, num_parameters=num_parameters, parameters_finite=finite)


def gradient_health(norm: Tensor, vanish: float, explode: float) -> Tensor:
    """Return 1 for a norm inside [vanish, explode], falling to 0 outside as the ratio to the bound; 0 for infinity.

    Args:
        norm: any shape, NaN where not measured.

    Returns:
        In [0, 1], NaN where not measured.
    """
    health = torch.where(norm > explode, explode / norm, torch.ones_like(norm))
    health = torch.where(norm < vanish, norm / vanish, health)
    return torch.where(norm.isnan(), norm, health)


def record_gradients(
    state: SlotState, norms: Tensor, host_norm: Tensor, host_params: Tensor, rules: GrowthRules
) -> None:
    """Record gradient statistics of the last epoch; an epoch without them resets the values to "not measured".

    Args:
        norms: ``float [E, S]``, NaN where none was measured, infinite where a gradient was not finite.
        host_norm: ``float [E]``.
        host_params: ``int64 [E]``.
    """
    norm = torch.where(state.present, norms.double(), torch.nan)
    # norm / host norm, corrected for their numbers of parameters; undefined without either.
    sizes = host_params.double()[:, None] / state.num_parameters
    ratio = norm / host_norm.double()[:, None] * sizes.sqrt()
    state.previous_health = torch.where(state.gradient_health.isnan(), state.previous_health, state.gradient_health)
    state.gradient_norm = norm
    state.gradient_health = gradient_health(norm, rules.vanish_norm, rules.explode_norm)
    state.gradient_ratio = torch.where(ratio.isfinite(), ratio, torch.nan)
    state.vanishing = norm < rules.vanish_norm
    state.exploding = norm > rules.explode_norm


def record_contributions(
    state: SlotState, values: Tensor, interaction: Tensor | None = None, boost: Tensor | None = None
) -> None:
    """Record counterfactual results of the last epoch; in an epoch without them, the previous ones age.

    Args:
        values: ``float [E, S]``, points with the module minus points without it, or the preview of a module in
            TRAINING; NaN where not measured.
        interaction: ``float [E, S]``, points, sum of the module's interactions; NaN where not measured.
        boost: ``float [E, S]``, points, the strongest of these interactions; NaN where not measured.
    """
    measured = state.present & ~values.isnan()
    settled = _BLENDED[state.stage] & at_target(state)
    state.previous_contribution = torch.where(measured, state.contribution, state.previous_contribution)
    state.assign(measured, contribution=values, contribution_age=0)
    state.measured_since_ramp = state.measured_since_ramp | (measured & settled)
    if interaction is not None:
        state.assign(state.present & ~interaction.isnan(), interaction=interaction)
    if boost is not None:
        state.assign(state.present & ~boost.isnan(), boost=boost)
