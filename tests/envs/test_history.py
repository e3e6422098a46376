"""Host history: plateau, stability, padding, and what a reset forgets."""

from __future__ import annotations

from math import log

import pytest
import torch

from esper.envs.features import feature_table
from esper.envs.history import HostHistory
from esper.envs.observations import observe
from esper.growth import SlotState
from esper.growth.actions import Op


def shown(history: HostHistory) -> dict[str, float]:
    """Base features of environment 0 by name."""
    state = SlotState.empty(history.epoch.shape[0], 1)
    budget = torch.ones(history.epoch.shape[0])
    features, _ = observe(
        history, state, num_epochs=20, param_budget=budget, min_training_epochs=5, contribution_decay=0.995
    )
    return {feature.name: features[0, feature.index].item() for feature in feature_table(1)}


def record(history: HostHistory, *losses: float) -> list[tuple[int, bool]]:
    seen = []
    for loss in losses:
        history.record(torch.tensor([loss]), torch.tensor([0.5]))
        seen.append((int(history.plateau_epochs), bool(history.stabilised)))
    return seen


def test_plateau_counts_epochs_since_an_improvement_of_one_percent() -> None:
    """Small steps add up: 0.4 % three times is an improvement over the last low that counted."""
    history = HostHistory.empty(1)
    plateaus = [plateau for plateau, _ in record(history, 1.0, 0.996, 0.992, 0.988, 1.2, 0.99, 0.97)]
    assert plateaus == [0, 1, 2, 0, 1, 2, 0]


def test_stabilised_latches_after_three_quiet_epochs_in_a_row() -> None:
    history = HostHistory.empty(1)
    flags = [flag for _, flag in record(history, 1.0, 0.99, 1.0, 0.9, 0.91, 0.90, 0.89, 5.0)]
    assert flags == [False, False, False, False, False, False, True, True]


@pytest.mark.parametrize(("ratio", "quiet"), [(0.949, False), (0.951, True), (1.029, True), (1.031, False)])
def test_quiet_is_between_minus_five_and_plus_three_percent(ratio: float, quiet: bool) -> None:
    history = HostHistory.empty(1)
    assert record(history, 1.0, ratio, ratio**2, ratio**3)[-1][1] == quiet


def test_histories_are_padded_on_the_left_and_keep_five() -> None:
    history = HostHistory.empty(1)
    for epoch in range(1, 8):
        history.record(torch.tensor([float(epoch)]), torch.tensor([epoch / 10]))
        row = shown(history)
        found = [row[f"val_accuracy_{age}_ago"] for age in (4, 3, 2, 1, 0)]
        expected = [0.0] * max(0, 5 - epoch) + [e / 10 for e in range(max(1, epoch - 4), epoch + 1)]
        assert found == pytest.approx(expected)


def test_a_loss_that_is_not_finite_saturates_and_is_not_the_best() -> None:
    history = HostHistory.empty(1)
    record(history, 1.0, float("nan"))
    row = shown(history)
    assert (row["val_loss"], row["val_loss_delta"]) == (2.0, 1.0)
    assert row["best_loss"] == pytest.approx(log(2) / log(11))


def test_reset_reaches_the_named_environments_only() -> None:
    history = HostHistory.empty(3)
    everyone = torch.tensor([1.0, 2.0, 3.0])
    history.record(everyone, everyone / 10)
    history.record(everyone * 2, everyone / 20)
    assert history.losses[:, -1].tolist() == [2.0, 4.0, 6.0]
    assert history.epoch.tolist() == [2, 2, 2]
    history.record_action(torch.tensor([1, 2, 3]), torch.tensor([False, False, True]))
    history.reset(torch.tensor([False, True, False]))
    assert history.epoch.tolist() == [2, 0, 2]
    assert history.losses[1].isnan().all()
    assert history.last_op.tolist() == [1, Op.WAIT, 3]
    assert history.last_success.tolist() == [False, True, True]


def test_history_survives_a_round_trip_and_refuses_a_foreign_record() -> None:
    history = HostHistory.empty(1)
    record(history, 2.0, 1.9, 1.7, 1.6, 1.5)
    tensors = history.to_dict()
    copy = HostHistory.from_dict(tensors)
    record(history, 0.1)
    record(copy, 0.1)
    for name, values in copy.to_dict().items():
        assert torch.equal(values, getattr(history, name)), name
    with pytest.raises(ValueError, match="losses is"):
        HostHistory.from_dict(tensors | {"losses": torch.zeros(1, 4, dtype=torch.float64)})
    del tensors["epoch"]
    with pytest.raises(ValueError, match="epoch"):
        HostHistory.from_dict(tensors)
