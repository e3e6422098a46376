"""The action tables agree with the enums."""

from __future__ import annotations

import torch
from helpers import action

from esper.growth import actions
from esper.growth.actions import AlphaSpeed, BlendAlgorithm, Head, Op, Style, describe, head_sizes, relevance


def test_lookup_tables_equal_the_enums() -> None:
    for names, enum in (
        (actions.OP_NAMES, Op),
        (actions.STYLE_NAMES, Style),
        (actions.TEMPO_NAMES, actions.Tempo),
        (actions.ALPHA_SPEED_NAMES, AlphaSpeed),
        (actions.ALPHA_CURVE_NAMES, actions.AlphaCurve),
    ):
        assert list(names) == [member.name for member in enum]
    assert list(actions.BLUEPRINT_IDS) == [member.name.lower() for member in actions.Blueprint]
    assert [member.name.lower() for member in Head] == list(actions.HEADS)
    assert head_sizes(3, actions.NUM_BLUEPRINTS) == (6, 3, len(actions.Blueprint), 4, 3, 3, 4, 5)
    assert (actions.TEMPO_EPOCHS, actions.ALPHA_SPEED_EPOCHS) == ((3, 5, 8), (0, 3, 5, 8))
    assert actions.ALPHA_TARGETS == (0.5, 0.7, 1.0)
    for style, algorithm in zip(Style, actions.STYLE_ALGORITHMS, strict=True):
        assert BlendAlgorithm(algorithm).name == style.name.split("_")[1]


def test_the_tensor_of_heads_and_the_record_agree_for_every_op() -> None:
    for op in Op:
        row = action(op, blueprint=1, alpha_speed=AlphaSpeed.FAST, alpha_curve=1).tolist()
        matters = relevance(torch.tensor(op), torch.tensor(0.5), torch.tensor(AlphaSpeed.FAST)).tolist()
        record = describe(row, 0.5, ["r0c0"], actions.BLUEPRINT_IDS)
        assert [getattr(record, head) is not None for head in actions.HEADS] == matters
        assert [head in actions.OP_HEADS[op] for head in Head] == matters


def test_speed_and_curve_matter_only_where_they_change_something() -> None:
    cull = torch.full((3,), int(Op.CULL))
    alpha = torch.tensor([0.0, 0.5, 0.5])
    speed = torch.tensor([AlphaSpeed.FAST, AlphaSpeed.INSTANT, AlphaSpeed.FAST])
    found = relevance(cull, alpha, speed)
    assert found[:, Head.ALPHA_SPEED].tolist() == [False, True, True]
    assert found[:, Head.ALPHA_CURVE].tolist() == [False, False, True]


def test_the_record_of_one_action_changes_nothing_for_the_next() -> None:
    cull = action(Op.CULL, alpha_speed=AlphaSpeed.FAST, alpha_curve=1).tolist()
    described = [describe(cull, alpha, ["r0c0"], actions.BLUEPRINT_IDS).alpha_speed for alpha in (0.5, 0.0, 0.5)]
    assert described == ["FAST", None, "FAST"]
