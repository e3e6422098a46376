"""Slot state as a value, measurements written into it, and reports read from it."""

from __future__ import annotations

import math

import pytest
import torch
from lifecycle_driver import DIGITS, act, grow, measure, step

from esper.growth import (
    SlotState,
    Stage,
    gradient_health,
    record_contributions,
    record_gradients,
    record_parameters,
    tick,
)
from esper.growth.actions import BLUEPRINT_IDS, BlendAlgorithm, Op
from esper.growth.reports import reports

NAN = float("nan")


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_state_survives_a_round_trip_and_shares_nothing() -> None:
    state = grow(3, until=Stage.BLENDING)
    step(state)
    saved = state.to_dict()
    copy = SlotState.from_dict(saved)
    step(state, act(Op.CULL))
    for name, values in copy.to_dict().items():
        assert torch.equal(values.nan_to_num(), saved[name].nan_to_num()), name
    assert not copy.alpha.equal(state.alpha)


def test_a_restored_state_goes_on_as_the_original() -> None:
    state = grow(2, until=Stage.BLENDING)
    copy = SlotState.from_dict(state.to_dict())
    for _ in range(12):
        step(state)
        step(copy)
    for name, values in copy.to_dict().items():
        assert torch.equal(values.nan_to_num(), getattr(state, name).nan_to_num()), name


@pytest.mark.parametrize("stage", [Stage.UNKNOWN, 10, -1])
def test_loading_an_unknown_stage_names_the_slot(stage: int) -> None:
    tensors = SlotState.empty(2, 3).to_dict()
    tensors["stage"][1, 2] = stage
    with pytest.raises(ValueError, match=f"environment 1, slot 2 has stage {int(stage)}"):
        SlotState.from_dict(tensors)


def test_loading_a_foreign_record_is_an_error() -> None:
    tensors = SlotState.empty(2, 3).to_dict()
    with pytest.raises(ValueError, match=r"alpha is torch.float32 \(2, 3\)"):
        SlotState.from_dict(tensors | {"alpha": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"boost is .* \(2, 2\)"):
        SlotState.from_dict(tensors | {"boost": torch.zeros(2, 2, dtype=torch.float64)})
    del tensors["dwell"]
    with pytest.raises(ValueError, match="dwell"):
        SlotState.from_dict(tensors)


def test_reset_empties_the_named_environments_only() -> None:
    state = SlotState.empty(3, 2)
    for _ in range(8):
        step(state, act(Op.GERMINATE, 3, slot=1))
    before = state.clone()
    state.reset(torch.tensor([False, True, False]))
    empty = SlotState.empty(1, 2)
    for name, values in state.to_dict().items():
        kept = getattr(before, name)[[0, 2]]
        assert torch.equal(values[[0, 2]].nan_to_num(), kept.nan_to_num()), name
        assert torch.equal(values[1:2].nan_to_num(nan=-9), getattr(empty, name).nan_to_num(nan=-9)), name


def test_environments_do_not_see_each_other() -> None:
    """Stepping three environments together equals stepping each alone."""
    together = SlotState.empty(3, 2)
    alone = [SlotState.empty(1, 2) for _ in range(3)]
    plan = [act(Op.GERMINATE), act(Op.WAIT), act(Op.CULL), act(Op.EXTEND), act(Op.GERMINATE, slot=1)]
    for t in range(20):
        actions = [plan[(t + 2 * env) % len(plan)] for env in range(3)]
        step(together, torch.cat(actions))
        for state, action in zip(alone, actions, strict=True):
            step(state, action)
    for env, state in enumerate(alone):
        for name, values in together[env : env + 1].to_dict().items():
            assert torch.equal(values.nan_to_num(), getattr(state, name).nan_to_num()), name


def test_gradient_health_by_hand() -> None:
    norms = row(0.0, 0.05, 0.1, 1.0, 10.0, 40.0, math.inf, NAN)
    health = gradient_health(norms, vanish=0.1, explode=10.0)[0].tolist()
    assert health[:7] == pytest.approx([0, 0.5, 1, 1, 1, 0.25, 0])
    assert math.isnan(health[7])


def test_gradient_flags_and_ratio_by_hand() -> None:
    state = SlotState.empty(1, 4)
    state.stage.fill_(Stage.TRAINING)
    state.stage[0, 3] = Stage.DORMANT
    record_parameters(state, torch.tensor([[25, 100, 0, 7]]), torch.ones(1, 4, dtype=torch.bool))
    record_gradients(state, row(1e-9, 1e4, NAN, 1.0), torch.tensor([2.0]), torch.tensor([400]), DIGITS)
    assert state.vanishing.tolist() == [[True, False, False, False]]
    assert state.exploding.tolist() == [[False, True, False, False]]
    assert state.gradient_ratio[0, :2].tolist() == pytest.approx([1e-9 / 2 * 4, 1e4 / 2 * 2])
    assert state.gradient_ratio[0, 2:].isnan().all()
    assert state.gradient_norm[0, 2:].isnan().all(), "an empty slot has no gradient"
    assert state.num_parameters.tolist() == [[25, 100, 0, 0]]


def test_previous_health_is_the_measurement_before() -> None:
    state = SlotState.empty(1, 1)
    state.stage.fill_(Stage.TRAINING)
    seen = []
    for norm in (1.0, 1e5, NAN, 2e3):
        measure(state, DIGITS, norms=row(norm))
        seen.append(state.previous_health.item())
    assert math.isnan(seen[0])
    assert seen[1:] == pytest.approx([1.0, 1e-2, 1e-2])


def test_contributions_age_until_they_are_measured_again() -> None:
    state = grow(2, until=Stage.HOLDING, contributions=torch.full((1, 2), NAN))
    assert state.contribution_age.tolist() == [[0, 0]]
    record_contributions(state, row(3.0, 5.0), interaction=row(1.0, 1.0), boost=row(-2.0, NAN))
    tick(state)
    tick(state)
    record_contributions(state, row(NAN, NAN), interaction=row(NAN, NAN))
    assert state.contribution[0, 0].item() == 3.0
    assert state.contribution_age.tolist() == [[2, 0]]
    assert (state.interaction[0, 0].item(), state.boost[0, 0].item()) == (1.0, -2.0)
    assert state.contribution[0, 1].isnan(), "an empty slot has no contribution"
    record_contributions(state, row(4.0, NAN))
    assert (state.contribution - state.previous_contribution)[0, 0].item() == 1.0
    assert state.contribution_age.tolist() == [[0, 0]]


def test_reports_hold_none_for_what_was_not_measured() -> None:
    state = SlotState.empty(2, 2)
    step(state, act(Op.GERMINATE, 2, slot=1, blueprint=1), norms=row(NAN, NAN), contributions=row(NAN, NAN))
    found = reports(state, 1, ("r0c0", "r0c1"), 333, DIGITS, BLUEPRINT_IDS)
    assert list(found) == ["r0c0", "r0c1"]
    empty, module = found.values()
    assert (empty.stage, empty.blueprint, empty.algorithm, empty.seed_params) == (Stage.DORMANT, None, None, 0)
    assert set(empty.gates.values()) == {None}
    assert (module.stage, module.blueprint, module.algorithm) == (Stage.TRAINING, "conv_light", BlendAlgorithm.ADD)
    assert (module.seed_params, module.host_params, module.age) == (100, 333, 1)
    unmeasured = (module.gradient_norm, module.gradient_health, module.gradient_ratio, module.contribution)
    assert unmeasured == (None, None, None, None)
    assert (module.contribution_velocity, module.contribution_age) == (None, None)
    assert module.gates == {"G0": True, "G1": True, "G2": False, "G3": None, "G5": None}


def test_reports_of_a_measured_module() -> None:
    state = grow(until=Stage.HOLDING, alpha_target=1)
    step(state, contributions=row(4.0))
    (report,) = reports(state, 0, ("r0c0",), 333, DIGITS, BLUEPRINT_IDS).values()
    assert (report.contribution, report.contribution_velocity, report.contribution_age) == (4.0, 3.0, 0)
    assert (report.alpha, report.alpha_target, report.gradient_health) == (0.7, 0.7, 1.0)
    assert report.gates == {"G0": True, "G1": True, "G2": True, "G3": True, "G5": True}
