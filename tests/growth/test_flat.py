"""The flat form of actions lists each once, and its masks are exact."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from lifecycle_driver import NUM_BLUEPRINTS
from schema_defaults import growth_rules
from test_legality import NUM_SLOTS, episodes

from esper.growth import GrowthRules, SlotState, apply_actions, legal
from esper.growth.actions import Op, describe
from esper.growth.flat import flat_actions
from esper.growth.legality import permitted
from tests.tiers import few

SLOTS = [f"slot{number}" for number in range(NUM_SLOTS)]
BLUEPRINTS = [f"blueprint{number}" for number in range(NUM_BLUEPRINTS)]
RULES = growth_rules(max_developing=2, max_seeds=2, min_training_epochs=1, min_cull_age=1, embargo_epochs=1)


def test_it_lists_wait_then_germinations_then_what_needs_a_slot_alone() -> None:
    rows = flat_actions(SLOTS, BLUEPRINTS)
    assert len(rows) == len(rows.unique(dim=0)) == 1 + NUM_SLOTS * (NUM_BLUEPRINTS + 3)
    named = [describe(row, 1.0, SLOTS, BLUEPRINTS) for row in rows.tolist()]
    germinations, rest = named[1 : 1 + NUM_SLOTS * NUM_BLUEPRINTS], named[1 + NUM_SLOTS * NUM_BLUEPRINTS :]
    assert named[0].op == "WAIT"
    assert [(action.slot, action.blueprint) for action in germinations] == [(s, b) for s in SLOTS for b in BLUEPRINTS]
    assert {(action.style, action.tempo, action.alpha_target) for action in germinations} == {
        ("LINEAR_ADD", "FAST", 1.0)
    }
    assert [(action.op, action.slot) for action in rest] == [
        (op.name, slot) for op in (Op.CULL, Op.FOSSILIZE, Op.EXTEND) for slot in SLOTS
    ]
    assert {action.alpha_speed for action in rest if action.op == "CULL"} == {"INSTANT"}


def succeeds(state: SlotState, actions: torch.Tensor, compatible: torch.Tensor, rules: GrowthRules) -> torch.Tensor:
    copy = SlotState(**{name: value.clone() for name, value in state.to_dict().items()})
    return apply_actions(copy, actions, compatible, rules).success


@pytest.mark.parametrize("seed", range(2))
@few(1)
def test_an_action_is_masked_exactly_if_it_would_not_succeed(seed: int) -> None:
    rows, seen = flat_actions(SLOTS, BLUEPRINTS), set()
    for state, compatible, _ in islice(episodes(seed, RULES), 40):
        masks = permitted(legal(state, compatible, RULES), rows[None])
        for row, legal_now in zip(rows, masks.T, strict=True):
            assert torch.equal(succeeds(state, row.expand(state.num_envs, -1), compatible, RULES), legal_now)
            seen |= {(int(row[0]), bool(value)) for value in legal_now}
    ops = {int(op) for op in rows[:, 0]}
    assert seen == {(op, value) for op in ops for value in (True, False)} - {(Op.WAIT, False)}
