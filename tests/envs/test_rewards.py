"""Rewards: an episode earns its final value, and no reward can be collected along the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_episodes import CHANCE, NAN, PENALTY, Episode, column, episodes, points

from esper.envs.rewards import (
    MAX_LOSS,
    REWARDS,
    Potential,
    RewardInputs,
    charged_parameters,
    contribution_reward,
    furthest_stage,
    loss_reward,
    loss_score,
    paired_reward,
    points_score,
    rent,
    total,
)
from esper.growth import SlotState, Stage
from esper.population import Scores
from esper.runtime.options import Rent
from tests.tiers import few


@pytest.mark.parametrize("family", REWARDS)
@settings(max_examples=100, deadline=None)
@given(episode=episodes(), gamma=st.sampled_from([1.0, 0.995, 0.9, 0.5]))
@few(1)
def test_the_discounted_sum_is_the_discounted_worth_of_the_end(family: str, episode: Episode, gamma: float) -> None:
    """Any path, any length, with stages, with and without a crash: sum gamma^t r_t = gamma^(T-1) G."""
    expected = gamma ** (len(episode.scores) - 1) * episode.worth(family)
    assert episode.paid(gamma, family) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("family", REWARDS)
@settings(max_examples=50, deadline=None)
@given(twins=st.lists(points, min_size=1, max_size=12), gamma=st.sampled_from([1.0, 0.995, 0.9]))
def test_a_host_equal_to_what_it_is_compared_with_earns_exactly_zero_at_every_step(
    family: str, twins: list[float], gamma: float
) -> None:
    """`never`, and a module that stays in TRAINING: no gap, no rent, no reward, bit for bit."""
    zeros = [0.0] * len(twins)
    last = twins[-1]
    episode = Episode(
        scores=twins, twins=twins, offs=twins, rents=zeros, final_score=last, final_twin=last, final_rent=0
    )
    assert episode.rewards(gamma, family) == zeros


def test_rewards_by_hand() -> None:
    """Three steps at gamma 0.5: gap 0 -> 2 -> 6, rent 0 -> 1 -> 1, worth 10 - 3 - 0.5 = 6.5."""
    episode = Episode(
        scores=[5, 9, 99], twins=[3, 3, 99], rents=[1, 1, 99], final_score=10, final_twin=3, final_rent=0.5
    )
    assert episode.rewards(0.5) == pytest.approx([0.5 * 1 - 0, 0.5 * 5 - 1, 6.5 - 5])
    assert episode.rewards(0.5, "loss") == episode.rewards(0.5)


def test_contribution_by_hand() -> None:
    """The example above with all modules off scoring 3, 3 and 4 instead of a twin: 10 - 4 - 0.5 = 5.5."""
    episode = Episode(
        scores=[5, 9, 99], twins=[NAN] * 3, offs=[3, 3, 4], rents=[1, 1, 99], final_score=10, final_rent=0.5
    )
    assert episode.rewards(0.5, "contribution") == pytest.approx([0.5 * 1 - 0, 0.5 * 5 - 1, 5.5 - 5])


@pytest.mark.parametrize(
    ("step", "gain"),
    [
        (paired_reward, CHANCE["paired"] - 60 - 4),
        (loss_reward, CHANCE["paired"] - 60 - 4),
        (contribution_reward, 0 - 4),
    ],
)
def test_components_of_a_crash_by_hand(step, gain: float) -> None:  # type: ignore[no-untyped-def]
    previous = Potential(gap=column(4.0), rent=column(1.0), stage=column(6.0))
    episode = Episode(scores=[30], twins=[20], rents=[3], stages=[8], crashed=True, final_twin=60)
    _, components = step(previous, episode.inputs(0), gamma=0.9, crash_penalty=PENALTY)
    assert {name: value.item() for name, value in components.items()} == {
        "gain": gain,
        "rent": 1 - 3,
        "stage": -6,
        "crash": -PENALTY,
    }


@pytest.mark.parametrize("family", REWARDS)
def test_a_host_that_crashes_as_its_twin_does_earns_exactly_zero_at_every_step(family: str) -> None:
    """Whenever it crashes: sooner pays no more. Only what it has grown is charged."""
    for length in (1, 3):
        own = [30.0, 40.0, NAN][-length:]
        crash = Episode(scores=own, twins=own, offs=own, rents=[0.0] * length, crashed=True, final_twin=CHANCE[family])
        doomed = replace(crash, twin_crashed=True)
        assert doomed.rewards(1.0, family) == [0.0] * length
        assert replace(doomed, rents=[2.0] * length).paid(1.0, family) == -2.0
        assert crash.paid(1.0, family) == -PENALTY


def test_stage_shaping_by_hand() -> None:
    """gamma Psi' - Psi, and all that was lent is taken back at the end."""
    calm = Episode(scores=[0] * 4, twins=[0] * 4, rents=[0] * 4, final_score=0, final_twin=0, final_rent=0)
    shaped = Episode(**{**vars(calm), "stages": [2, 0, 10, 10]})
    assert [parts["stage"] for parts in shaped.components(0.5)] == [0.5 * 2, 0 - 2, 0.5 * 10, -10]
    assert shaped.paid(0.5) == 0 == calm.paid(0.5)


def test_each_environment_is_paid_by_its_own_rule() -> None:
    """One goes on, one ends, one crashes, one does both (a crash): rewards equal those of each alone."""
    previous = Potential(**{name: torch.full((4,), v).double() for name, v in (("gap", 2), ("rent", 1), ("stage", 5))})
    values = {
        "score": 30.0,
        "twin": 20.0,
        "off": NAN,
        "rent": 3.0,
        "stage": 6.0,
        "final_score": 40.0,
        "final_twin": 25.0,
        "final_rent": 2.0,
        "chance_score": 10.0,
    }
    inputs = RewardInputs(
        ended=torch.tensor([False, True, False, True]),
        crashed=torch.tensor([False, False, True, True]),
        twin_crashed=torch.zeros(4, dtype=torch.bool),
        **{name: torch.full((4,), value).double() for name, value in values.items()},
    )
    potential, components = paired_reward(previous, inputs, gamma=0.5, crash_penalty=PENALTY)
    crash = 10 - 25 - 3 - PENALTY - 1 - 5
    assert total(components).tolist() == [0.5 * 7 - 1 + 0.5 * 6 - 5, 13 - 1 - 5, crash, crash]
    assert (potential.gap - potential.rent).tolist() == [7, 0, 0, 0]
    assert potential.stage.tolist() == [6, 0, 0, 0]
    emptied = potential.reset(torch.tensor([True, False, False, False]))
    assert (emptied.gap - emptied.rent + emptied.stage).tolist() == [0, 0, 0, 0]


# ------------------------------------------------------------------------------------------------------ rent, stages


def blended(alpha: float, stage: Stage = Stage.HOLDING) -> SlotState:
    state = SlotState.empty(1, 2)
    state.stage[0, 0] = stage
    state.alpha[0, 0] = alpha
    state.num_parameters[0, 0] = 600
    return state


def test_alpha_one_half_pays_the_same_rent_as_alpha_one() -> None:
    charged = [charged_parameters(blended(alpha)) for alpha in (0.5, 0.7, 1.0)]
    assert [(present.item(), final.item()) for present, final in charged] == [(600, 0)] * 3


def test_a_module_without_influence_pays_no_rent_and_a_fossilized_one_always_does() -> None:
    present, final = charged_parameters(blended(0.0, Stage.TRAINING))
    assert (present.item(), final.item()) == (0, 0)
    present, final = charged_parameters(blended(0.0, Stage.FOSSILIZED))
    assert (present.item(), final.item()) == (600, 600)


def test_rent_by_hand() -> None:
    added, host = torch.tensor([0, 300, 600]), torch.tensor([300, 300, 300])
    assert rent(added, host, 3.0, Rent.linear).tolist() == [0, 3, 6]
    expected = [0, 3 * 0.6931471805599453, 3 * 1.0986122886681098]
    assert rent(added, host, 3.0, Rent.log).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("stage", Stage)
def test_the_furthest_stage_counts_what_stands_in_the_host(stage: Stage) -> None:
    """GERMINATED 1 to FOSSILIZED 5; empty slots and what is being removed count 0."""
    state = SlotState.empty(2, 2)
    state.stage[:, 0] = Stage.GERMINATED
    state.stage[1, 1] = stage
    reached = {"GERMINATED": 1, "TRAINING": 2, "BLENDING": 3, "HOLDING": 4, "FOSSILIZED": 5}.get(stage.name, 1)
    assert furthest_stage(state).tolist() == [1, reached]
    state.fading[:, 0] = True
    state.stage[:, 1] = Stage.DORMANT
    assert furthest_stage(state).tolist() == [0, 0]


def test_scores_by_hand() -> None:
    def scores(loss: float) -> Scores:
        return Scores(points=torch.tensor([50.0]), loss=torch.tensor([loss]), accuracy=torch.tensor([0.5]))

    guess = scores(2.0)
    assert points_score(scores(1.5), guess).tolist() == [50.0]
    assert loss_score(scores(1.5), guess).tolist() == [-75.0]
    assert loss_score(guess, guess).tolist() == [-100.0]
    assert loss_score(scores(1e38), guess).tolist() == [-100.0 * MAX_LOSS], "diverged is diverged"
    assert loss_score(scores(NAN), guess).isnan()


def test_the_registry_knows_its_families() -> None:
    assert {name: (family.score, family.step, family.reads_off) for name, family in REWARDS.items()} == {
        "paired": (points_score, paired_reward, False),
        "loss": (loss_score, loss_reward, False),
        "contribution": (points_score, contribution_reward, True),
    }
    with pytest.raises(ValueError, match="reward family: unknown 'lottery'; choose from paired, loss, contribution"):
        REWARDS.find("lottery")
