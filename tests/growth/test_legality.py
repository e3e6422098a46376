"""Masks and execution agree, and no sequence of actions breaks the rules of growth."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_driver import NUM_BLUEPRINTS, act, step
from schema_defaults import growth_rules
from torch import Tensor

from esper.growth import (
    GrowthRules,
    SlotState,
    Stage,
    apply_actions,
    legal,
    record_contributions,
    record_gradients,
    record_parameters,
    tick,
    transition,
)
from esper.growth.actions import OP_HEADS, Head, Op, head_sizes

NUM_ENVS, NUM_SLOTS = 3, 3

rules_strategy = st.builds(
    growth_rules,
    max_developing=st.integers(1, NUM_SLOTS),
    max_seeds=st.integers(1, NUM_SLOTS),
    min_training_epochs=st.integers(0, 2),
    min_cull_age=st.integers(0, 2),
    embargo_epochs=st.integers(0, 2),
    resetting_epochs=st.integers(0, 1),
)

AFTER_ACTION = {
    (Stage.DORMANT, Stage.GERMINATED),
    (Stage.HOLDING, Stage.FOSSILIZED),
    (Stage.HOLDING, Stage.BLENDING),
    *((stage, Stage.CULLED) for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)),
}
MECHANICAL = {
    (Stage.GERMINATED, Stage.TRAINING),
    (Stage.TRAINING, Stage.BLENDING),
    (Stage.BLENDING, Stage.HOLDING),
    (Stage.BLENDING, Stage.CULLED),
    (Stage.HOLDING, Stage.CULLED),
    (Stage.CULLED, Stage.EMBARGOED),
    (Stage.EMBARGOED, Stage.RESETTING),
    (Stage.RESETTING, Stage.DORMANT),
}


def random_actions(generator: torch.Generator) -> Tensor:
    """Actions biased towards ops that change something; legal and illegal ones."""
    columns = [torch.randint(n, (NUM_ENVS,), generator=generator) for n in head_sizes(NUM_SLOTS, NUM_BLUEPRINTS)]
    return torch.stack(columns, dim=1)


def episodes(seed: int, rules: GrowthRules, num_steps: int = 40) -> Iterator[tuple[SlotState, Tensor, Tensor]]:
    """Random episodes with failing gates: (state, compatible, actions about to be applied), then the step is made."""
    generator = torch.Generator().manual_seed(seed)
    compatible = torch.rand(NUM_ENVS, NUM_SLOTS, NUM_BLUEPRINTS, generator=generator) < 0.7
    state = SlotState.empty(NUM_ENVS, NUM_SLOTS)
    for _ in range(num_steps):
        masks = legal(state, compatible, rules)
        actions = random_actions(generator)
        op = torch.multinomial(masks.op.double(), 1, generator=generator).squeeze(1)
        actions[:, Head.OP] = torch.where(torch.rand(NUM_ENVS, generator=generator) < 0.8, op, actions[:, Head.OP])
        yield state, compatible, actions
        apply_actions(state, actions, compatible, rules)
        tick(state)
        measure_badly(state, rules, generator)
        transition(state, rules)


def measure_badly(state: SlotState, rules: GrowthRules, generator: torch.Generator) -> None:
    """Measurements of which some are missing, unhealthy or not finite."""

    def draw(probability: float) -> Tensor:
        return torch.rand(state.stage.shape, generator=generator) < probability

    norms = torch.ones(state.stage.shape, dtype=torch.float64)
    norms = norms.masked_fill(draw(0.1), torch.nan).masked_fill(draw(0.1), torch.inf)
    values = torch.randn(state.stage.shape, generator=generator, dtype=torch.float64).masked_fill(draw(0.3), torch.nan)
    record_parameters(state, torch.full_like(state.stage, 10), ~draw(0.05))
    record_gradients(state, norms, torch.ones(NUM_ENVS), torch.full((NUM_ENVS,), 100), rules)
    record_contributions(state, values)


def every_action() -> Tensor:
    """``int64 [K, 8]``: every op on every slot with every blueprint; other heads random."""
    choices = [torch.arange(len(Op)), torch.arange(NUM_SLOTS), torch.arange(NUM_BLUEPRINTS)]
    grid = torch.cartesian_prod(*choices)
    generator = torch.Generator().manual_seed(0)
    rest = [torch.randint(n, (len(grid), 1), generator=generator) for n in head_sizes(NUM_SLOTS, NUM_BLUEPRINTS)[3:]]
    return torch.cat([grid, *rest], dim=1)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), rules=rules_strategy)
def test_an_action_succeeds_exactly_where_the_masks_allow_it(seed: int, rules: GrowthRules) -> None:
    tried = every_action()
    op, slot, blueprint = tried[:, :3].unbind(1)
    for state, compatible, _ in episodes(seed, rules, num_steps=25):
        masks = legal(state, compatible, rules)
        for env in range(NUM_ENVS):
            copies = torch.full((len(tried),), env)
            allowed = masks.op[env, op] & (masks.slot[env, op, slot] | (op == Op.WAIT))
            allowed &= masks.blueprint[env, slot, blueprint] | (op != Op.GERMINATE)
            after = state[copies]
            applied = apply_actions(after, tried, compatible[copies], rules)
            assert applied.success.equal(allowed)
            changed = differs(state[copies], after)
            assert not changed[~allowed].any(), "an illegal action changed the state"
            visible = (op != Op.WAIT) & (op != Op.EXTEND)  # EXTEND at dwell 0 has nothing to restart
            assert changed[allowed & visible].all(), "a legal action changed nothing"


def differs(one: SlotState, other: SlotState) -> Tensor:
    """``bool [E]``: any field of any slot differs."""
    old, new = one.to_dict(), other.to_dict()
    changed = [(old[name] != new[name]) & ~(old[name].isnan() & new[name].isnan()) for name in old]
    return torch.stack(changed).flatten(2).any(2).any(0)


@settings(max_examples=14, deadline=None)
@given(seed=st.integers(0, 2**31), rules=rules_strategy)
def test_no_sequence_of_actions_breaks_the_rules(seed: int, rules: GrowthRules) -> None:
    """Caps hold, FOSSILIZED is final, slots move by arrows of the diagram only, alphas stay in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    for state, compatible, actions in episodes(seed, rules):
        before = state.clone()
        after = state.clone()
        applied = apply_actions(after, actions, compatible, rules)
        acted = after.clone()
        tick(after)
        measure_badly(after, rules, generator)
        moves = transition(after, rules)

        assert (after.developing.sum(1) <= rules.max_developing).all()
        assert (after.kept.sum(1) <= rules.max_seeds).all()
        assert ((after.alpha >= 0) & (after.alpha <= 1)).all()
        assert (after.blueprint >= 0).equal(after.present)
        assert (after.stage[before.stage == Stage.FOSSILIZED] == Stage.FOSSILIZED).all()
        assert arrows(before.stage, acted.stage) <= AFTER_ACTION
        assert arrows(acted.stage, after.stage) <= MECHANICAL
        assert moves.before.equal(acted.stage)
        assert moves.after.equal(after.stage)
        lost = before.present & ~after.present
        assert (applied.removed | moves.removed).equal(lost), "every lost module is reported, once, and only those"
        assert not (applied.removed & moves.removed).any()
        assert applied.germinated.equal(acted.present & ~before.present)


def arrows(before: Tensor, after: Tensor) -> set[tuple[Stage, Stage]]:
    """The (from, to) pairs of slots that moved."""
    moved = before != after
    pairs = zip(before[moved].tolist(), after[moved].tolist(), strict=True)
    return {(Stage(old), Stage(new)) for old, new in pairs}


def test_random_episodes_reach_every_stage() -> None:
    """Otherwise the properties above could hold because nothing happens."""
    rules = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=1, min_cull_age=1, embargo_epochs=1)
    seen: set[int] = set()
    fading = False
    for seed in range(12):
        for state, _, _ in episodes(seed, rules):
            seen |= set(state.stage.flatten().tolist())
            fading |= bool(state.fading.any())
    assert seen == set(range(1, 10))
    assert fading


def test_masks_share_nothing_with_the_state() -> None:
    state = SlotState.empty(1, 1)
    compatible = torch.ones(1, NUM_BLUEPRINTS, dtype=torch.bool)
    masks = legal(state, compatible, growth_rules(max_developing=1, max_seeds=1))
    step(state, act(Op.GERMINATE))
    for _ in range(5):
        step(state)
    assert state.alpha.item() > 0
    assert masks.alpha.item() == 0
    assert masks.op[0].tolist() == [True, True, False, False, False, False]


def test_germinate_is_masked_once_every_kept_place_is_fossilized() -> None:
    state = SlotState.empty(1, 3)
    rules = growth_rules(max_developing=3, max_seeds=1)
    compatible = torch.ones(3, NUM_BLUEPRINTS, dtype=torch.bool)
    state.stage[0, 1] = Stage.HOLDING
    assert legal(state, compatible, rules).slot[0, Op.GERMINATE].tolist() == [True, False, True]
    state.stage[0, 1] = Stage.FOSSILIZED
    assert not legal(state, compatible, rules).op[0, Op.GERMINATE]


def test_germinate_needs_room_among_the_developing_and_a_fitting_blueprint() -> None:
    state = SlotState.empty(1, 3)
    compatible = torch.tensor([[True], [True], [False]])
    assert legal(state, compatible, growth_rules(max_developing=1, max_seeds=3)).slot[0, Op.GERMINATE].tolist() == [
        True,
        True,
        False,
    ]
    state.stage[0, 0] = Stage.TRAINING
    assert not legal(state, compatible, growth_rules(max_developing=1, max_seeds=3)).op[0, Op.GERMINATE]
    assert legal(state, compatible, growth_rules(max_developing=2, max_seeds=3)).op[0, Op.GERMINATE]


def test_every_op_has_a_row_of_slots_and_wait_has_none() -> None:
    assert set(OP_HEADS) == set(Op)
    state = SlotState.empty(2, 2)
    masks = legal(state, torch.ones(2, 1, dtype=torch.bool), growth_rules(max_developing=2, max_seeds=2))
    assert not masks.slot[:, Op.WAIT].any()
    assert masks.op[:, Op.WAIT].all()
