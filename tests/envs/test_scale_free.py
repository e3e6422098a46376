"""Features without scale: the same for another scale of the loss or another number of epochs, inside their ranges."""

from __future__ import annotations

from math import exp, log10

import pytest
import torch
from torch import Tensor

from esper.envs.features import BASE_INDEX, feature_table
from esper.envs.history import HostHistory
from esper.envs.observations import observe
from esper.growth import GrowthRules, SlotState, Stage, record_gradients
from esper.population.probes import PROBE_NAMES

NUM_SLOTS = 3


def curves(num_epochs: int, share: float, scale: float = 1.0) -> HostHistory:
    """History of a host after a share of its episode."""
    history = HostHistory.empty(1)
    for epoch in range(1, round(share * num_epochs) + 1):
        time = epoch / num_epochs
        loss, accuracy = scale * (0.3 + 2 * exp(-1.5 * time)), 0.9 - 0.8 * exp(-2 * time)
        history.record(torch.tensor([loss]), torch.tensor([accuracy]))
    return history


def modules(num_epochs: int, norm: float = 1.0) -> SlotState:
    """Three modules at the same times of their lives, in shares of an episode of at least 10 epochs."""
    state, unit = SlotState.empty(1, NUM_SLOTS), num_epochs // 10
    state.stage = torch.tensor([[Stage.TRAINING, Stage.BLENDING, Stage.HOLDING]])
    state.blueprint = torch.tensor([[1, 4, 5]])
    state.num_parameters = torch.tensor([[80, 90, 100]])
    state.alpha = torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64)
    state.alpha_velocity = torch.tensor([[0.0, 0.25 / unit, 0.0]], dtype=torch.float64)
    state.ramp_duration, state.ramp_elapsed = torch.tensor([[0, 4, 4]]) * unit, torch.tensor([[0, 2, 4]]) * unit
    state.dwell = torch.tensor([[2, 0, 0]]) * unit
    state.epochs_in_stage = torch.tensor([[2, 2, 3]]) * unit
    state.contribution = torch.tensor([[2.0, 4.0, -3.0]], dtype=torch.float64)
    state.previous_contribution = state.contribution.clone()
    state.contribution_age = torch.tensor([[1, 1, 0]]) * unit
    limits = {"vanish_norm": 1e-6, "explode_norm": 1e3}
    rules = GrowthRules(
        max_developing=3,
        max_seeds=3,
        min_training_epochs=5 * unit,
        min_cull_age=1,
        embargo_epochs=1,
        resetting_epochs=1,
        min_gradient_health=0.5,
        **limits,
    )
    norms = norm * torch.tensor([[0.5, 40.0, 1e-5]])
    record_gradients(state, norms, norm * torch.tensor([2.0]), torch.tensor([1000]), rules)
    return state


def seen(num_epochs: int, *, scale: float = 1.0, scale_free: bool = True, share: float = 0.6) -> Tensor:
    probes = torch.tensor([[[0.5, 0.25, -0.2, 0.1], [0.0, 0.75, 0.1, 0.3], [0.0, 0.5, -0.5, 0.2]]])
    probes[..., 2:] += log10(scale) / 3
    features, _ = observe(
        curves(num_epochs, share, scale),
        modules(num_epochs, scale),
        num_epochs=num_epochs,
        param_budget=torch.tensor([1000.0]),
        min_training_epochs=num_epochs // 2,
        contribution_decay=0.995,
        probes=probes,
        scale_free=scale_free,
        slot_probes=PROBE_NAMES,
    )
    return features[0]


def unlike(first: Tensor, second: Tensor, tolerance: float) -> set[str]:
    """Names of the features that differ."""
    table = feature_table(NUM_SLOTS, PROBE_NAMES)
    return {each.name for each in table if abs(float(first[each.index] - second[each.index])) > tolerance}


@pytest.mark.parametrize("scale", [64.0, 1 / 64])
def test_a_factor_on_the_loss_changes_nothing(scale: float) -> None:
    assert unlike(seen(20), seen(20, scale=scale), 1e-5) == set()
    assert len(unlike(seen(20, scale_free=False), seen(20, scale=scale, scale_free=False), 1e-2)) > 10


@pytest.mark.parametrize("num_epochs", [10, 60])
@pytest.mark.parametrize("share", [0.4, 0.6, 1.0])
def test_another_number_of_epochs_changes_little(num_epochs: int, share: float) -> None:
    assert unlike(seen(20, share=share), seen(num_epochs, share=share), 0.05) == set()
    assert len(unlike(seen(20, scale_free=False), seen(num_epochs, scale_free=False), 0.05)) > 3


def test_all_stay_in_their_ranges_and_tell_what_they_should() -> None:
    features = seen(20)
    for each in feature_table(NUM_SLOTS, PROBE_NAMES):
        assert each.low <= float(features[each.index]) <= each.high
    before = curves(20, 0.6)
    rising = HostHistory.from_dict(before.to_dict())
    crashed = HostHistory.from_dict(before.to_dict())
    crashed.record(torch.tensor([torch.inf]), torch.tensor([0.1]))
    rising.record(2 * before.losses[:, -1], before.accuracies[:, -1])
    state = SlotState.empty(1, NUM_SLOTS)
    looked = [
        observe(
            history,
            state,
            num_epochs=20,
            param_budget=torch.tensor([1.0]),
            min_training_epochs=5,
            contribution_decay=1.0,
            scale_free=True,
        )[0][0]
        for history in (before, rising, crashed)
    ]
    assert float(looked[0][BASE_INDEX["val_loss"]]) == 0
    assert float(looked[1][BASE_INDEX["val_loss"]]) == pytest.approx(0.6931, abs=1e-3)
    assert float(looked[1][BASE_INDEX["val_loss_delta"]]) == pytest.approx(0.6931, abs=1e-3)
    assert float(looked[0][BASE_INDEX["val_loss_delta"]]) < 0
    assert float(looked[2][BASE_INDEX["val_loss"]]) == 2
