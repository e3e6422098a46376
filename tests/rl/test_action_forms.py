"""Masks of single heads allow what is legal in some combination, and leave every head a choice."""

from __future__ import annotations

import torch

from esper.growth.actions import NUM_OPS, ActionMasks, Op
from esper.rl.actions import Factored, Flat

SLOTS, BLUEPRINTS = ("a", "b"), ("noop", "light", "heavy")


def masks(*legal: tuple[Op, int]) -> ActionMasks:
    """Masks of one environment in which WAIT and these ops on these slots are legal; ``light`` fits slot a alone."""
    slot = torch.zeros(1, NUM_OPS, len(SLOTS), dtype=torch.bool)
    for op, number in legal:
        slot[0, op, number] = True
    op = slot.any(-1)
    op[:, Op.WAIT] = True
    fits = torch.tensor([[[True, True, False], [True, False, False]]])
    return ActionMasks(op=op, slot=slot, blueprint=fits, alpha=torch.zeros(1, len(SLOTS)))


def heads(form: Factored, found: ActionMasks) -> list[list[bool]]:
    return [part.tolist() for part in torch.from_numpy(form.masks(found)[0]).split(form.sizes.tolist())]


def test_a_head_without_a_legal_choice_takes_any() -> None:
    op, slot, blueprint, *rest = heads(Factored(1, SLOTS, BLUEPRINTS), masks())
    assert op == [True, *[False] * (NUM_OPS - 1)]
    assert slot == [True, True]
    assert blueprint == [True, True, False]
    assert all(all(head) for head in rest)


def test_a_head_allows_what_some_op_allows() -> None:
    op, slot, *_ = heads(Factored(1, SLOTS, BLUEPRINTS), masks((Op.GERMINATE, 1), (Op.CULL, 1)))
    assert [Op(number) for number, legal in enumerate(op) if legal] == [Op.WAIT, Op.GERMINATE, Op.CULL]
    assert slot == [False, True]


def test_flat_masks_join_op_slot_and_blueprint() -> None:
    form = Flat(1, SLOTS, BLUEPRINTS)
    legal = form.masks(masks((Op.GERMINATE, 0), (Op.EXTEND, 1)))[0].nonzero()[0]
    wait, germinate_light, germinate_noop, extend = 0, 2, 1, 1 + 2 * 3 + 2 * 2 + 1
    assert legal.tolist() == [wait, germinate_noop, germinate_light, extend]
