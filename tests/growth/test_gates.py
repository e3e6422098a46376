"""Gates: what passes, what does not, and that "not measured" never does."""

from __future__ import annotations

import pytest
import torch
from lifecycle_driver import DIGITS, act, grow, stage_of, step
from schema_defaults import growth_rules
from torch import Tensor

from esper.growth import AlphaMode, SlotState, Stage, apply_actions
from esper.growth.actions import AlphaSpeed, Head, Op

NAN = float("nan")


def reason_of_gate(state: SlotState, **measurements: Tensor) -> tuple[str, bool, str]:
    _, moves = step(state, **measurements)
    (record,) = moves.gates.records()
    return record.gate, record.passed, record.reason


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (NAN, "gradients not measured"),
        (float("inf"), "gradient health below min_gradient_health"),
        (1e4, "gradient health below min_gradient_health"),
        (0.0, "gradient health below min_gradient_health"),
    ],
)
def test_unmeasured_or_unhealthy_gradients_never_pass_g2(norm: float, reason: str) -> None:
    state = grow(until=Stage.TRAINING)
    step(state)
    norms = torch.full((1, 1), norm, dtype=torch.float64)
    for _ in range(10):
        assert reason_of_gate(state, norms=norms) == ("G2", False, reason)
    assert reason_of_gate(state) == ("G2", True, "passed")


def test_a_measurement_of_an_earlier_epoch_does_not_pass_g2() -> None:
    state = grow(until=Stage.TRAINING)
    step(state)
    assert state.gradient_health.item() == 1
    step(state, norms=torch.full((1, 1), NAN, dtype=torch.float64))
    assert stage_of(state) == Stage.TRAINING
    assert state.gradient_health.isnan().all()
    assert state.previous_health.item() == 1


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING])
def test_a_module_that_is_not_finite_passes_no_gate(stage: Stage) -> None:
    state = SlotState.empty(1, 1)
    step(state, act(Op.GERMINATE), finite=torch.full((1, 1), stage != Stage.GERMINATED))
    while stage_of(state) != stage:
        step(state)
    for _ in range(10):
        _, passed, reason = reason_of_gate(state, finite=torch.zeros(1, 1, dtype=torch.bool))
        assert (passed, reason) == (False, "parameters not allocated or not finite")
    assert stage_of(state) == stage


@pytest.mark.parametrize("missing", ["contribution", "finite"])
def test_fossilize_is_exactly_g5(missing: str) -> None:
    unmeasured = torch.full((1, 1), NAN, dtype=torch.float64)
    state = grow(until=Stage.HOLDING, contributions=unmeasured if missing == "contribution" else None)
    for _ in range(3):
        contributions = unmeasured if missing == "contribution" else None
        step(state, contributions=contributions, finite=torch.full((1, 1), missing != "finite"))
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert not applied.success.item()
    (record,) = applied.gates.records()
    assert (record.gate, record.passed) == ("G5", False)
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert applied.success.item()
    assert [(record.gate, record.passed) for record in applied.gates.records()] == [("G5", True)]


def test_a_contribution_measured_during_the_ramp_does_not_count_for_g5() -> None:
    state = grow(until=Stage.BLENDING)
    unmeasured = torch.full((1, 1), NAN, dtype=torch.float64)
    while state.alpha_mode.item() != AlphaMode.HOLD:
        assert not state.measured_since_ramp.any()
        ends = state.ramp_elapsed.item() == state.ramp_duration.item() - 1
        step(state, contributions=unmeasured if ends else None)
    assert stage_of(state) == Stage.HOLDING
    assert not state.contribution.isnan().any()
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert not applied.success.item()


def test_g0_is_reported_for_germinate() -> None:
    state = SlotState.empty(2, 1)
    compatible = torch.tensor([[True, False]])
    actions = act(Op.GERMINATE, 2)
    actions[1, Head.BLUEPRINT] = 1
    applied = apply_actions(state, actions, compatible, DIGITS)
    assert [(r.environment, r.gate, r.passed) for r in applied.gates.records()] == [
        (0, "G0", True),
        (1, "G0", False),
    ]
    assert applied.success.tolist() == [True, False]


def test_kept_places_go_to_the_best_preview_and_then_to_the_first_slot() -> None:
    """Four ready modules, two places: unmeasured previews come last, equal ones in slot order."""
    rules = growth_rules(max_developing=4, max_seeds=2, min_training_epochs=4, min_cull_age=1)
    cases = [
        ([1.0, 3.0, NAN, 2.0], [1, 3]),
        ([NAN, NAN, -5.0, NAN], [0, 2]),
        ([1.0, 1.0, 1.0, 1.0], [0, 1]),
    ]
    for previews, winners in cases:
        state = SlotState.empty(1, 4)
        for slot in range(4):
            step(state, act(Op.GERMINATE, slot=slot), rules, contributions=torch.full((1, 4), NAN))
        state.dwell.fill_(10)
        state.stage.fill_(Stage.TRAINING)
        values = torch.tensor([previews], dtype=torch.float64)
        state.contribution = torch.full_like(values, NAN)
        _, moves = step(state, None, rules, contributions=values)
        assert (moves.after[0] == Stage.BLENDING).nonzero().flatten().tolist() == winners
        blocked = {r.slot: r.reason for r in moves.gates.records() if not r.passed}
        assert set(blocked) == set(range(4)) - set(winners)
        assert set(blocked.values()) == {"max_seeds modules are kept already"}


def test_a_place_freed_by_a_fade_is_taken_in_the_same_epoch() -> None:
    rules = growth_rules(max_developing=2, max_seeds=1, min_training_epochs=1, min_cull_age=1)
    state = grow(2, rules, until=Stage.HOLDING)
    step(state, act(Op.GERMINATE, slot=1), rules)
    step(state, None, rules)
    step(state, None, rules)
    assert stage_of(state, 1) == Stage.TRAINING
    step(state, act(Op.CULL, slot=0, alpha_speed=AlphaSpeed.FAST), rules)
    step(state, None, rules)
    assert (stage_of(state, 0), stage_of(state, 1)) == (Stage.HOLDING, Stage.TRAINING)
    step(state, None, rules)
    assert (stage_of(state, 0), stage_of(state, 1)) == (Stage.CULLED, Stage.BLENDING)
