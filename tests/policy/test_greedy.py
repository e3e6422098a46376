"""Greedy rules choose legal ops from probabilities alone, and one of them never waits for ever."""

from __future__ import annotations

from io import BytesIO
from math import ceil, log

import pytest
import torch
from torch import Tensor

from esper.growth.actions import NUM_OPS, OP_FOSSILIZE, OP_GERMINATE, OP_WAIT
from esper.policy import MaskedCategorical
from esper.policy.greedy import GREEDY_RULES, GreedyRule, Hazard
from esper.runtime.options import Greedy

CPU = torch.device("cpu")
SHARED_REST = [0.4, 0.12, 0.11, 0.13, 0.12, 0.12]


def ops(probabilities: list[list[float]]) -> MaskedCategorical:
    """Distributions with these probabilities; those of 0 are illegal."""
    rows = torch.tensor(probabilities)
    return MaskedCategorical(rows.clamp(min=1e-30).log(), rows > 0)


def chosen(rule: GreedyRule, op: MaskedCategorical, num_steps: int) -> list[Tensor]:
    return [rule.choose(op) for _ in range(num_steps)]


def test_the_hazard_acts_at_the_median_of_the_sampled_time() -> None:
    shares = [0.02, 0.1, 0.3, 0.45, 0.5, 0.9]
    steps = chosen(Hazard(len(shares), CPU), ops([[1 - share, share, 0, 0, 0, 0] for share in shares]), 40)
    first = (torch.stack(steps) == OP_GERMINATE).long().argmax(0) + 1
    assert first.tolist() == [ceil(log(0.5) / log(1 - share)) for share in shares]


def test_the_mode_waits_for_ever_where_the_hazard_takes_every_other_op_in_its_time() -> None:
    op = ops([SHARED_REST])
    mode, hazard = (chosen(GREEDY_RULES[name](1, CPU), op, 12) for name in Greedy)
    assert [int(step) for step in mode] == [OP_WAIT] * 12
    first = next(step for step in hazard if int(step) != OP_WAIT)
    assert int(first) == OP_FOSSILIZE, "the first to be overdue"
    assert {int(step) for step in hazard} == set(range(NUM_OPS))


@pytest.mark.parametrize(
    "shares", [[0.04, 0, 0, 0.16, 0.42, 0.38], [0.3, 0, 0.09, 0.06, 0, 0.55], [0.05, 0, 0, 0.05, 0, 0.9]], ids=str
)
def test_an_op_is_taken_by_the_time_of_half_of_the_episodes_however_likely_others_are(shares: list[float]) -> None:
    """EXTEND alone, or with SET_ALPHA_TARGET, is the most probable op in every step."""
    taken = [int(step) for step in chosen(Hazard(1, CPU), ops([shares]), 40)]
    median = ceil(log(0.5) / log(1 - shares[OP_FOSSILIZE]))
    others = sum(share > 0 for share in shares) - 2
    assert median <= taken.index(OP_FOSSILIZE) + 1 <= median + others


def test_what_was_likely_before_it_became_illegal_is_forgotten() -> None:
    rule = Hazard(1, CPU)
    chosen(rule, ops([[0.7, 0, 0, 0.3, 0, 0]]), 1)
    chosen(rule, ops([[1, 0, 0, 0, 0, 0]]), 1)
    assert int(rule.choose(ops([[0.68, 0, 0, 0.32, 0, 0]]))) == OP_WAIT
    assert int(rule.choose(ops([[0.68, 0, 0, 0.32, 0, 0]]))) == OP_FOSSILIZE


def test_where_one_op_has_most_of_the_probability_both_rules_are_the_mode() -> None:
    generator = torch.Generator().manual_seed(0)
    rules = [GREEDY_RULES[name](50, CPU) for name in Greedy]
    for _ in range(10):
        rest = torch.rand(50, NUM_OPS, generator=generator) * 1e-3
        best = torch.randint(NUM_OPS, (50, 1), generator=generator)
        op = MaskedCategorical(rest.scatter(1, best, 1.0).log())
        for rule in rules:
            assert torch.equal(rule.choose(op), best.squeeze(1))


def test_waiting_is_chosen_where_nothing_else_is_legal() -> None:
    rule = Hazard(1, CPU)
    assert all(int(step) == OP_WAIT for step in chosen(rule, ops([[1, 0, 0, 0, 0, 0]]), 30))
    assert int(rule.choose(ops([[0.4, 0.6, 0, 0, 0, 0]]))) == OP_GERMINATE


@pytest.mark.parametrize("name", Greedy)
def test_a_rule_with_the_state_of_another_goes_on_as_it_and_restarts_by_environment(name: Greedy) -> None:
    first, second, fresh = (GREEDY_RULES[name](2, CPU) for _ in range(3))
    op = ops([[0.9, 0.1, 0, 0, 0, 0]] * 2)
    chosen(first, op, 4)
    file = BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    first.reset(torch.tensor([False, True]))
    second.reset(torch.tensor([False, True]))
    for _ in range(12):
        both, new = first.choose(op), fresh.choose(op)
        assert torch.equal(second.choose(op), both)
        assert int(both[1]) == int(new[1])
