"""A policy keeps to the choices left to its heads, and starts with the op logits that it is given."""

from __future__ import annotations

import pytest
import torch
from policy_cases import assert_legal, masks_at, open_masks, opinionated_policy, random_masks, random_view, rng

from esper.config.choices import ChoicesConfig, InitialOpLogits
from esper.growth.actions import NUM_BLUEPRINTS, OP_NAMES, OP_SET_ALPHA_TARGET, AlphaTarget, Head, Op, Style, Tempo
from esper.policy import GrowthPolicy

NUM_ENVS, NUM_STEPS = 64, 5
LEFT = {
    Head.OP: [int(op) for op in Op if op != OP_SET_ALPHA_TARGET],
    Head.STYLE: [Style.LINEAR_ADD],
    Head.TEMPO: [Tempo.FAST, Tempo.SLOW],
    Head.ALPHA_TARGET: [AlphaTarget.FULL],
}


@pytest.mark.parametrize("body", ["flat", "shared"])
def test_choices_are_those_left_and_a_fixed_head_has_no_probability_to_learn(body: str) -> None:
    policy, generator = opinionated_policy(scale=3.0, choices=LEFT, body=body), rng()
    features, index = random_view(NUM_ENVS, NUM_STEPS, generator=generator)
    masks = random_masks(NUM_ENVS, NUM_STEPS, generator=generator)
    hidden = start = policy.initial_state(NUM_ENVS)
    acts = []
    for step in range(NUM_STEPS):
        now = masks_at(masks, step)
        act = policy.act(features[:, step], index[:, step], now, hidden, generator)
        assert_legal(act.actions, now)
        hidden = act.hidden
        acts.append(act)
    actions = torch.stack([act.actions for act in acts], 1)
    found = policy.evaluate(features, index, masks, actions, start, torch.zeros(NUM_ENVS, NUM_STEPS, dtype=torch.bool))
    germinated = actions[..., Head.OP] == Op.GERMINATE
    assert germinated.any()
    assert set(actions[..., Head.OP].unique().tolist()) <= set(LEFT[Head.OP])
    assert set(actions[germinated][:, Head.STYLE].tolist()) == {int(Style.LINEAR_ADD)}
    assert set(actions[germinated][:, Head.ALPHA_TARGET].tolist()) == {int(AlphaTarget.FULL)}
    assert set(actions[germinated][:, Head.TEMPO].tolist()) <= {int(Tempo.FAST), int(Tempo.SLOW)}
    torch.testing.assert_close(found.log_prob, torch.stack([act.log_prob for act in acts], 1))
    for head in (Head.STYLE, Head.ALPHA_TARGET):
        assert not found.log_prob[..., head].any()
        assert not found.entropy[..., head].any()
    assert (found.num_legal[germinated][:, Head.TEMPO] == 2).all()


def test_all_choices_are_those_of_a_policy_that_was_told_of_none() -> None:
    assert ChoicesConfig().indices() == {}
    assert ChoicesConfig(style=["GATED_GATE", "LINEAR_ADD"], alpha_target=[1.0]).indices() == {
        Head.STYLE: [Style.LINEAR_ADD, Style.GATED_GATE],
        Head.ALPHA_TARGET: [AlphaTarget.FULL],
    }


def test_a_new_policy_has_the_op_logits_that_it_is_given() -> None:
    logits = InitialOpLogits(germinate=3.0, cull=-3.0, fossilize=2.0).by_op()
    policy = GrowthPolicy(3, NUM_BLUEPRINTS, encoder_dim=16, lstm_dim=16, head_dim=16, initial_op_logits=logits)
    features, index = random_view(400, 1, generator=rng())
    ops = policy.act(features[:, 0], index[:, 0], open_masks(400), policy.initial_state(400), rng()).actions[:, Head.OP]
    expected = torch.tensor(logits).softmax(0)
    assert ops.bincount(minlength=len(OP_NAMES)) / 400 == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"style": ["LINEAR"]},
            "policy.choices.style has LINEAR: choose from SIGMOID_ADD, LINEAR_ADD, LINEAR_MULTIPLY, ",
        ),
        ({"alpha_target": [0.9]}, "policy.choices.alpha_target has 0.9: choose from 0.5, 0.7, 1.0"),
        ({"tempo": []}, "policy.choices.tempo must not be empty"),
        ({"tempo": ["FAST", "FAST"]}, "policy.choices.tempo names FAST more than once"),
        ({"op": ["GERMINATE"]}, r"policy.choices.op must have WAIT, which is always legal, got \['GERMINATE'\]"),
    ],
)
def test_impossible_choices_are_refused(values: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChoicesConfig(**values)


def test_a_logit_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy\.initial_op_logits\.cull must be finite, got -inf"):
        InitialOpLogits(cull=float("-inf"))
