"""The flat form of actions: a list of whole actions, for learners that choose a single number.

It has one way to do each op, that of rule-based controllers: a germination is LINEAR_ADD, FAST, up to alpha 1, and a
cull is INSTANT. SET_ALPHA_TARGET is left out.

Axis legend: S = slots, B = blueprints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.growth.actions import FactoredAction, Op, encode

ON_SLOT = (Op.CULL, Op.FOSSILIZE, Op.EXTEND)
"""Ops that need a slot and nothing else."""


def flat_actions(slot_ids: Sequence[str], blueprint_ids: Sequence[str]) -> Tensor:
    """List all flat actions: WAIT; GERMINATE by slot and blueprint; CULL, FOSSILIZE and EXTEND by slot.

    Args:
        slot_ids: S slot ids in canonical order.
        blueprint_ids: B blueprint ids in index order.

    Returns:
        ``int64 [1 + S * (B + 3), 8]``, rows in head order.
    """
    listed = [FactoredAction(op=Op.WAIT.name)]
    listed += [
        FactoredAction(op=Op.GERMINATE.name, slot=slot, blueprint=blueprint)
        for slot in slot_ids
        for blueprint in blueprint_ids
    ]
    listed += [FactoredAction(op=op.name, slot=slot) for op in ON_SLOT for slot in slot_ids]
    return torch.stack([encode(action, slot_ids, blueprint_ids) for action in listed])
