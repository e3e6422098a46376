"""Features without the scale of losses, gradients and epochs: the same columns with other numbers.

They do not change with a factor on the loss, nor, but for noise and curvature, with the number of epochs in which a
host trains as far: times and rates are in twentieths of an episode, losses in logarithms relative to the lowest one,
and gradients relative to the host's.

Axis legend: E = environments, S = slots, F = features of a slot, H = the last epochs, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from esper.envs.features import BASE_INDEX, HISTORY, SLOT_INDEX
from esper.envs.history import STABLE_CHANGE, STABLE_EPOCHS, HostHistory
from esper.growth import SlotState

Array = NDArray[np.float32]

PARTS = 20
"""Parts of an episode that are the unit of time: 20 epochs are observed as without this module, as far as time goes."""

RATIO_RANGE = (1e-3, 1e3)
"""Gradient norms of a module, relative to the host's, between which its gradient is healthy."""

RELATIVE_PROBES = ("log_gradient_norm", "log_first_order_gain")
"""Probes that are observed relative to their mean over slots."""


def rescale_base(out: Array, history: HostHistory, num_epochs: int) -> None:
    """Replace the features of environments that have a scale, ``float32 [E, 31]``, before clipping.

    What was k epochs ago becomes what was k twentieths of an episode ago. ``stabilised`` is about the last three of
    them and not latched; ``best_loss`` is 0, as all losses are relative to it.

    Args:
        out: changed in place.
        history: sources.
        num_epochs: length of an episode.
    """
    at = BASE_INDEX
    above = np.log(history.losses.numpy()) - np.log(history.best_loss.numpy())[:, None]
    losses, accuracies = (_at_lags(values, num_epochs / PARTS) for values in (above, history.accuracies.numpy()))
    for name, values in (("loss", losses), ("accuracy", accuracies)):
        first = at[f"val_{name}_{HISTORY - 1}_ago"]
        out[:, first : first + HISTORY] = values
        out[:, at[f"val_{name}"]] = values[:, -1]
    out[:, at["val_loss_delta"]] = losses[:, -1] - losses[:, -2]
    out[:, at["val_accuracy_delta"]] = 10 * (accuracies[:, -1] - accuracies[:, -2])
    out[:, at["plateau_epochs"]] = history.plateau_epochs.numpy() / num_epochs
    change = (losses[:, -1] - losses[:, -1 - STABLE_EPOCHS]) / STABLE_EPOCHS
    low, high = np.log1p(STABLE_CHANGE)
    out[:, at["stabilised"]] = (change > low) & (change < high)
    out[:, at["best_loss"]] = 0


def _at_lags(values: NDArray[np.float64], pace: float) -> NDArray[np.float64]:
    """Convert values of the last epochs to those of the last parts of an episode, ``float64 [E, H]`` each.

    They are interpolated between epochs, and extrapolated from the oldest one where that is not far enough back.

    Args:
        values: oldest first.
        pace: epochs per part.
    """
    now, lags = values[:, -1:], pace * np.arange(HISTORY - 1, -1, -1)
    known = np.minimum(lags, HISTORY - 1)
    later, earlier = np.floor(known).astype(int), np.ceil(known).astype(int)
    share = known - later
    found = (1 - share) * values[:, -1 - later] + np.where(share > 0, share * values[:, -1 - earlier], 0.0)
    return np.where(lags > 0, now + (found - now) * lags / np.maximum(known, 1e-9), now)


def rescale_slots(out: Array, state: SlotState, num_epochs: int, contribution_decay: float) -> None:
    """Replace the features of slots that have a scale, ``float32 [E, S, F]``, before clipping.

    ``previous_health`` is 0, because only its absolute value is known.

    Args:
        out: changed in place.
        state: sources.
        num_epochs: length of an episode.
        contribution_decay: factor on freshness per twentieth of an episode.
    """
    at, pace = SLOT_INDEX, num_epochs / PARTS
    out[..., at["alpha_velocity"]] *= pace
    out[..., at["time_to_target"]] /= pace
    contribution = state.contribution.numpy()
    fresh = contribution_decay ** (state.contribution_age.numpy() / pace)
    out[..., at["freshness"]] = np.where(np.isnan(contribution), 0.0, fresh)
    low, high = RATIO_RANGE
    ratio = state.gradient_ratio.numpy()
    out[..., at["gradient_norm"]] = ratio / (1 + ratio)
    out[..., at["gradient_health"]] = np.minimum(np.minimum(ratio / low, high / ratio), 1)
    out[..., at["previous_health"]] = 0
    out[..., at["vanishing"]] = ratio < low
    out[..., at["exploding"]] = ratio > high


def rescale_probes(values: Array, names: Sequence[str]) -> None:
    """Subtract the mean over slots from the probes that are logarithms of gradients.

    Args:
        values: ``float32 [E, S, num_probes]``, changed in place; NaN where not measured.
        names: names of the probes.
    """
    for column in (number for number, name in enumerate(names) if name in RELATIVE_PROBES):
        measured = ~np.isnan(values[..., column])
        total = np.where(measured, values[..., column], 0).sum(1, keepdims=True)
        values[..., column] -= total / np.maximum(measured.sum(1, keepdims=True), 1)
