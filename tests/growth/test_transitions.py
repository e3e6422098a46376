"""The life of a module, epoch by epoch, and the effect of each head of an action."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_driver import DIGITS, NUM_BLUEPRINTS, act, grow, measure, stage_of, step
from schema_defaults import growth_rules

from esper.growth import AlphaMode, SlotState, Stage, apply_actions, tick, transition
from esper.growth.actions import (
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    OP_HEADS,
    TEMPO_EPOCHS,
    AlphaCurve,
    AlphaSpeed,
    BlendAlgorithm,
    Head,
    Op,
    Style,
    head_sizes,
)
from tests.tiers import few

NAN = float("nan")


def test_timeline_of_a_kept_module_under_the_digits_rules() -> None:
    """Stage and alpha after each step, from GERMINATE to FOSSILIZED, linear ramp of 3 epochs to 0.5."""
    state = SlotState.empty(1, 1)
    germinate = act(Op.GERMINATE, blueprint=1, style=Style.LINEAR_ADD, tempo=0, alpha_target=0)
    expected = [
        (germinate, Stage.TRAINING, 0.0),
        (act(Op.WAIT), Stage.TRAINING, 0.0),
        (act(Op.WAIT), Stage.BLENDING, 0.0),
        (act(Op.WAIT), Stage.BLENDING, 0.5 / 3),
        (act(Op.WAIT), Stage.BLENDING, 1.0 / 3),
        (act(Op.WAIT), Stage.HOLDING, 0.5),
        (act(Op.WAIT), Stage.HOLDING, 0.5),
        (act(Op.FOSSILIZE), Stage.FOSSILIZED, 0.5),
        (act(Op.WAIT), Stage.FOSSILIZED, 0.5),
    ]
    for epoch, (action, stage, alpha) in enumerate(expected):
        faced = stage_of(state)
        applied, moves = step(state, action)
        assert applied.success.all(), epoch
        gates = {Stage.DORMANT: ["G1"], Stage.TRAINING: ["G2"], Stage.BLENDING: ["G3"]}
        assert [record.gate for record in moves.gates.records()] == gates.get(faced, []), epoch
        assert (stage_of(state), state.alpha.item()) == (stage, pytest.approx(alpha, abs=1e-15)), epoch
    assert state.alpha.item() == 0.5
    assert state.age.item() == len(expected)
    assert state.epochs_in_stage.item() == 2


def test_a_module_that_begins_to_blend_has_not_been_measured_since_its_ramp() -> None:
    """Also if it was blended before, as after an op that sends it back to TRAINING."""
    state = grow(until=Stage.HOLDING)
    measure(state, DIGITS)
    assert state.measured_since_ramp.all()
    state.assign(state.stage == Stage.HOLDING, stage=Stage.TRAINING, alpha=0.0, epochs_in_stage=0, dwell=0)
    while stage_of(state) != Stage.BLENDING:
        step(state)
    assert not state.measured_since_ramp.any()


def test_timeline_of_a_faded_module_under_the_digits_rules() -> None:
    """CULL at alpha 1 over 3 epochs: keeps its stage while fading, then CULLED, EMBARGOED, RESETTING, DORMANT."""
    state = grow(until=Stage.HOLDING, alpha_target=2)
    cull = act(Op.CULL, alpha_speed=AlphaSpeed.FAST, alpha_curve=AlphaCurve.LINEAR)
    expected = [
        (cull, Stage.HOLDING, 2 / 3, False),
        (act(Op.WAIT), Stage.HOLDING, 1 / 3, False),
        (act(Op.WAIT), Stage.CULLED, 0.0, True),
        (act(Op.WAIT), Stage.EMBARGOED, 0.0, False),
        (act(Op.WAIT), Stage.RESETTING, 0.0, False),
        (act(Op.WAIT), Stage.DORMANT, 0.0, False),
    ]
    for epoch, (action, stage, alpha, removed) in enumerate(expected):
        applied, moves = step(state, action)
        assert (stage_of(state), state.alpha.item()) == (stage, pytest.approx(alpha, abs=1e-15)), epoch
        assert moves.removed.item() == removed, epoch
        assert not applied.removed.any()
    same_as_empty(state)


@pytest.mark.parametrize("embargo", [0, 1, 3])
def test_embargo_lasts_as_many_epochs_as_configured(embargo: int) -> None:
    """After the epoch of the CULL: the embargo (at least 1, as a slot moves once per epoch), then RESETTING."""
    rules = growth_rules(max_developing=1, max_seeds=1, min_cull_age=0, embargo_epochs=embargo)
    state = grow(rules=rules, until=Stage.TRAINING)
    applied, _ = step(state, act(Op.CULL), rules)
    assert applied.removed.all()
    epochs = 0
    while stage_of(state) != Stage.DORMANT:
        step(state, None, rules)
        epochs += 1
    assert epochs == max(embargo, 1) + 1


def same_as_empty(state: SlotState) -> None:
    """Return whether nothing of the module is left; epochs_in_stage restarts."""
    empty = SlotState.empty(*state.stage.shape).to_dict()
    for name, values in state.to_dict().items():
        assert torch.equal(values.nan_to_num(nan=-9.0), empty[name].nan_to_num(nan=-9.0)), name


def test_cull_at_alpha_zero_or_instant_removes_at_once() -> None:
    for stage, speed in ((Stage.TRAINING, AlphaSpeed.SLOW), (Stage.HOLDING, AlphaSpeed.INSTANT)):
        state = grow(until=stage)
        step(state)
        applied = apply_actions(state, act(Op.CULL, alpha_speed=speed), torch.ones(1, 4, dtype=torch.bool), DIGITS)
        assert applied.removed.all()
        assert stage_of(state) == Stage.CULLED
        assert state.blueprint.item() == -1


def test_cull_waits_for_the_minimal_age() -> None:
    state = SlotState.empty(1, 1)
    for _ in range(5):
        step(state)  # an empty slot does not age
    step(state, act(Op.GERMINATE))
    applied, _ = step(state, act(Op.CULL))
    assert not applied.success.item(), "age 1 under min_cull_age 2"
    applied, _ = step(state, act(Op.CULL))
    assert applied.success.item()


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING])
@pytest.mark.parametrize("op", [Op.CULL, Op.FOSSILIZE, Op.SET_ALPHA_TARGET, Op.EXTEND])
def test_no_op_and_no_gate_applies_to_a_fading_module(op: Op, stage: Stage) -> None:
    state = grow(until=stage, tempo=2)
    step(state)
    step(state, act(Op.CULL, alpha_speed=AlphaSpeed.SLOW))
    applied, moves = step(state, act(op, alpha_speed=AlphaSpeed.SLOW))
    assert not applied.success.item()
    assert moves.gates.records() == []
    assert stage_of(state) == stage
    assert state.kept.all(), "a fading module keeps its place"


def test_extend_restarts_the_dwell_clock() -> None:
    rules = growth_rules(max_developing=1, max_seeds=1, min_training_epochs=3)
    state = grow(rules=rules, until=Stage.TRAINING)
    step(state, None, rules)
    step(state, act(Op.EXTEND), rules)
    assert state.dwell.item() == 1
    step(state, None, rules)
    assert stage_of(state) == Stage.TRAINING
    step(state, None, rules)
    assert stage_of(state) == Stage.BLENDING


def test_set_alpha_target_ramps_from_the_present_alpha_and_asks_for_a_new_measurement() -> None:
    state = grow(until=Stage.HOLDING, alpha_target=0)
    action = act(Op.SET_ALPHA_TARGET, style=Style.LINEAR_ADD, alpha_target=2, alpha_speed=AlphaSpeed.FAST)
    alphas = []
    for _ in range(3):
        applied, _ = step(state, action)
        action = act(Op.FOSSILIZE)
        alphas.append(state.alpha.item())
        assert not (applied.fossilized.any())
    assert alphas == pytest.approx([0.5 + 0.5 / 3, 0.5 + 1.0 / 3, 1.0])
    assert alphas[-1] == 1.0
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert applied.fossilized.all()


def test_a_ramp_to_the_present_alpha_takes_its_time() -> None:
    """The module is HOLDING again, and measured, only when the chosen epochs are over."""
    state = grow(until=Stage.HOLDING, alpha_target=0)
    action = act(Op.SET_ALPHA_TARGET, alpha_target=0, alpha_speed=AlphaSpeed.MEDIUM)
    stages = []
    for _ in range(ALPHA_SPEED_EPOCHS[AlphaSpeed.MEDIUM]):
        assert state.measured_since_ramp.item() == (not stages)
        step(state, action)
        action = act(Op.WAIT)
        stages.append(stage_of(state))
    assert stages == [Stage.BLENDING] * 4 + [Stage.HOLDING]
    assert state.measured_since_ramp.all()


def test_a_measurement_before_the_last_ramp_does_not_count_for_g5() -> None:
    """Measured at 0.5, moved to 1.0, not measured there: not ready. A measurement there makes it so."""
    unmeasured = torch.full((1, 1), NAN, dtype=torch.float64)
    state = grow(until=Stage.HOLDING, alpha_target=0)
    assert state.measured_since_ramp.all()
    step(state, act(Op.SET_ALPHA_TARGET, alpha_target=2), contributions=unmeasured)
    assert stage_of(state) == Stage.HOLDING
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert not applied.success.item()
    applied, _ = step(state, act(Op.FOSSILIZE))
    assert applied.success.item()


@pytest.mark.parametrize("curve", list(AlphaCurve))
def test_a_fade_ends_when_its_time_is_over_and_not_when_little_is_left(curve: AlphaCurve) -> None:
    state = grow(until=Stage.HOLDING)
    step(state)
    action = act(Op.CULL, alpha_speed=AlphaSpeed.SLOW, alpha_curve=curve)
    for _ in range(ALPHA_SPEED_EPOCHS[AlphaSpeed.SLOW] - 1):
        step(state, action)
        action = act(Op.WAIT)
        assert stage_of(state) == Stage.HOLDING
    step(state)
    assert stage_of(state) == Stage.CULLED


def test_instant_alpha_target_jumps_at_the_next_tick() -> None:
    state = grow(until=Stage.HOLDING, alpha_target=2)
    action = act(Op.SET_ALPHA_TARGET, alpha_target=0, alpha_speed=AlphaSpeed.INSTANT)
    apply_actions(state, action, torch.ones(1, 4, dtype=torch.bool), DIGITS)
    assert (state.alpha.item(), state.alpha_mode.item()) == (1.0, AlphaMode.STEP)
    tick(state)
    assert (state.alpha.item(), state.alpha_mode.item(), state.alpha_velocity.item()) == (0.5, AlphaMode.HOLD, -0.5)
    measure(state, DIGITS)
    transition(state, DIGITS)
    assert stage_of(state) == Stage.HOLDING


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from(range(3)),
    target=st.sampled_from(range(3)),
    speed=st.sampled_from(list(AlphaSpeed)),
    curve=st.sampled_from(list(AlphaCurve)),
    fade=st.booleans(),
)
def test_ramps_end_exactly_at_their_target_on_time(
    start: int, target: int, speed: AlphaSpeed, curve: AlphaCurve, fade: bool
) -> None:
    """For every curve and speed, up, down and out; monotone on the way."""
    state = grow(until=Stage.HOLDING, alpha_target=start)
    assert state.alpha.item() == ALPHA_TARGETS[start]
    op = Op.CULL if fade and speed != AlphaSpeed.INSTANT else Op.SET_ALPHA_TARGET
    end = 0.0 if op is Op.CULL else ALPHA_TARGETS[target]
    apply_actions(
        state,
        act(op, alpha_target=target, alpha_speed=speed, alpha_curve=curve),
        torch.ones(1, 4, dtype=torch.bool),
        DIGITS,
    )
    path = [state.alpha.item()]
    for _ in range(max(1, ALPHA_SPEED_EPOCHS[speed])):
        tick(state)
        path.append(state.alpha.item())
        assert state.alpha_velocity.item() == path[-1] - path[-2]
    assert path[-1] == end
    assert state.alpha_mode.item() == AlphaMode.HOLD
    assert path in (sorted(path), sorted(path, reverse=True))
    tick(state)
    assert state.alpha.item() == end


# ---------------------------------------------------------------------------------------------------------- heads


def _outcome(op: Op, slots: int, **heads: int) -> tuple[object, ...]:
    """Return everything that affects a population in the epochs after one action on a state where it is legal."""
    if op is Op.GERMINATE:
        state = SlotState.empty(1, slots)
    else:
        stage = Stage.TRAINING if op is Op.EXTEND else Stage.HOLDING
        state = SlotState.empty(1, slots)
        for slot in range(slots):
            step(state, act(Op.GERMINATE, slot=slot, alpha_target=1))
        for _ in range(30):
            if (state.stage == stage).all():
                break
            step(state)
        state.age += 10
    history: list[object] = []
    action = act(op, **heads)
    for _ in range(14):
        applied, _ = step(state, action)
        assert applied.success.all()
        action = act(Op.WAIT)
        history.append([state.stage.tolist(), state.alpha.tolist(), state.blueprint.tolist(), state.dwell.tolist()])
        history.append([state.algorithm.tolist(), applied.restyled.tolist(), state.alpha_target.tolist()])
    return tuple(map(str, history))


HEAD_BASE = {"alpha_speed": int(AlphaSpeed.MEDIUM), "alpha_target": 2}


@pytest.mark.parametrize(
    ("op", "head"), [(op, head) for op, heads in OP_HEADS.items() for head in heads if head is not Head.OP]
)
@few(6)
def test_every_head_that_matters_changes_what_happens(op: Op, head: Head) -> None:
    """All values of a relevant head lead to different epochs (LINEAR_ADD and LINEAR_MULTIPLY differ in algorithm)."""
    name = head.name.lower()
    values = range(head_sizes(2, NUM_BLUEPRINTS)[head])
    if op is Op.SET_ALPHA_TARGET and head is Head.STYLE:
        values = range(1, 4)  # the first two styles are one algorithm, which is all that style means there
    rules_slots = 1 if op is Op.EXTEND and head is not Head.SLOT else 2
    outcomes = {_outcome(op, rules_slots, **(HEAD_BASE | {name: value})) for value in values}
    assert len(outcomes) == len(list(values))


def test_the_style_gives_algorithm_and_curve_at_germination_and_the_algorithm_only_later() -> None:
    expected = {
        Style.SIGMOID_ADD: (BlendAlgorithm.ADD, AlphaCurve.SIGMOID),
        Style.LINEAR_ADD: (BlendAlgorithm.ADD, AlphaCurve.LINEAR),
        Style.LINEAR_MULTIPLY: (BlendAlgorithm.MULTIPLY, AlphaCurve.LINEAR),
        Style.GATED_GATE: (BlendAlgorithm.GATE, AlphaCurve.LINEAR),
    }
    for style, (algorithm, curve) in expected.items():
        state = grow(until=Stage.HOLDING, style=style)
        assert (state.algorithm.item(), state.curve.item()) == (algorithm, curve)
        state = grow(until=Stage.HOLDING)
        action = act(Op.SET_ALPHA_TARGET, style=style, alpha_speed=1, alpha_curve=AlphaCurve.COSINE)
        applied, _ = step(state, action)
        assert (state.algorithm.item(), state.curve.item()) == (algorithm, AlphaCurve.COSINE)
        assert applied.restyled.item() == (algorithm != BlendAlgorithm.ADD)


def test_tempo_is_the_length_of_the_first_ramp() -> None:
    for tempo, epochs in enumerate(TEMPO_EPOCHS):
        state = grow(until=Stage.BLENDING, tempo=tempo)
        for _ in range(epochs - 1):
            step(state)
            assert stage_of(state) == Stage.BLENDING
        step(state)
        assert stage_of(state) == Stage.HOLDING
