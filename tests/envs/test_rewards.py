"""Rewards: an episode pays what it ends with, and nothing on the way can be farmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.envs.rewards import (
    REWARDS,
    Potential,
    RewardInputs,
    charged_parameters,
    paired_reward,
    probability_score,
    rent,
    reward_family,
    total,
)
from esper.lifecycle import SlotState, Stage

NAN = float("nan")
CHANCE = 10.0
PENALTY = 7.0


def column(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Curves of one environment; quantities that a step must not read are NaN."""

    scores: Sequence[float]
    twins: Sequence[float]
    rents: Sequence[float]
    final_score: float = NAN
    final_rent: float = NAN
    crashed: bool = False
    final_twin: float = field(default=NAN)

    def worth(self) -> float:
        """G, or G_c after a crash."""
        if self.crashed:
            return CHANCE - self.final_twin - self.rents[-1] - PENALTY
        return self.final_score - self.final_twin - self.final_rent

    def inputs(self, t: int) -> RewardInputs:
        last = t == len(self.scores) - 1
        crashed = self.crashed and last
        return RewardInputs(
            score=column(NAN if crashed else self.scores[t]),
            twin=column(NAN if crashed else self.twins[t]),
            rent=column(self.rents[t]),
            ended=torch.tensor([last]),
            crashed=torch.tensor([crashed]),
            final_score=column(self.final_score if last else NAN),
            final_twin=column(self.final_twin if last else NAN),
            final_rent=column(self.final_rent if last else NAN),
            chance_score=column(CHANCE),
        )

    def rewards(self, gamma: float) -> list[float]:
        potential = Potential.start(1)
        rewards = []
        for t in range(len(self.scores)):
            potential, components = paired_reward(potential, self.inputs(t), gamma=gamma, crash_penalty=PENALTY)
            assert set(components) == {"gain", "rent", "crash"}
            rewards.append(total(components).item())
        assert (potential.gap - potential.rent).item() == 0, "the next episode starts at 0"
        return rewards


def discounted(rewards: Sequence[float], gamma: float) -> float:
    return sum(gamma**t * reward for t, reward in enumerate(rewards))


points = st.floats(0, 100, allow_nan=False)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    length = draw(st.integers(1, 12))

    def curve() -> list[float]:
        return draw(st.lists(points, min_size=length, max_size=length))

    crashed = draw(st.booleans())
    return Episode(
        scores=curve(),
        twins=curve(),
        rents=curve(),
        crashed=crashed,
        final_twin=draw(points),
        final_score=NAN if crashed else draw(points),
        final_rent=NAN if crashed else draw(points),
    )


@settings(max_examples=200, deadline=None)
@given(episode=episodes(), gamma=st.sampled_from([1.0, 0.995, 0.9, 0.5]))
def test_the_discounted_sum_is_the_discounted_worth_of_the_end(episode: Episode, gamma: float) -> None:
    """Any path, any length, with and without a crash: sum gamma^t r_t = gamma^(T-1) G."""
    rewards = episode.rewards(gamma)
    expected = gamma ** (len(rewards) - 1) * episode.worth()
    assert discounted(rewards, gamma) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(twins=st.lists(points, min_size=1, max_size=12), gamma=st.sampled_from([1.0, 0.995, 0.9]))
def test_a_host_equal_to_its_twin_earns_exactly_zero_at_every_step(twins: list[float], gamma: float) -> None:
    """`never`, and a module that stays in TRAINING: no gap, no rent, no reward, bit for bit."""
    zeros = [0.0] * len(twins)
    episode = Episode(scores=twins, twins=twins, rents=zeros, final_score=twins[-1], final_twin=twins[-1], final_rent=0)
    assert episode.rewards(gamma) == zeros


def test_rewards_by_hand() -> None:
    """Three steps at gamma 0.5: gap 0 -> 2 -> 6, rent 0 -> 1 -> 1, worth 10 - 3 - 0.5 = 6.5."""
    episode = Episode(
        scores=[5, 9, 99], twins=[3, 3, 99], rents=[1, 1, 99], final_score=10, final_twin=3, final_rent=0.5
    )
    assert episode.rewards(0.5) == pytest.approx([0.5 * 1 - 0, 0.5 * 5 - 1, 6.5 - 5])


def test_components_by_hand() -> None:
    previous = Potential(gap=column(4.0), rent=column(1.0))
    episode = Episode(scores=[30], twins=[20], rents=[3], crashed=True, final_twin=60)
    _, components = paired_reward(previous, episode.inputs(0), gamma=0.9, crash_penalty=PENALTY)
    assert components["gain"].item() == CHANCE - 60 - 4
    assert components["rent"].item() == 1 - 3
    assert components["crash"].item() == -PENALTY


def test_each_environment_is_paid_by_its_own_rule() -> None:
    """One goes on, one ends, one crashes, one does both (a crash): rewards equal those of each alone."""
    previous = Potential(gap=torch.full((4,), 2.0).double(), rent=torch.full((4,), 1.0).double())
    values = {
        "score": 30.0,
        "twin": 20.0,
        "rent": 3.0,
        "final_score": 40.0,
        "final_twin": 25.0,
        "final_rent": 2.0,
        "chance_score": 10.0,
    }
    inputs = RewardInputs(
        ended=torch.tensor([False, True, False, True]),
        crashed=torch.tensor([False, False, True, True]),
        **{name: torch.full((4,), value).double() for name, value in values.items()},
    )
    potential, components = paired_reward(previous, inputs, gamma=0.5, crash_penalty=PENALTY)
    assert total(components).tolist() == [0.5 * 7 - 1, 13 - 1, 10 - 25 - 3 - PENALTY - 1, 10 - 25 - 3 - PENALTY - 1]
    assert (potential.gap - potential.rent).tolist() == [7, 0, 0, 0]
    emptied = potential.reset(torch.tensor([True, False, False, False]))
    assert (emptied.gap - emptied.rent).tolist() == [0, 0, 0, 0]


# ----------------------------------------------------------------------------------------------------------- cheats


def grown(**changes: object) -> Episode:
    base: dict[str, object] = {
        "scores": [40, 50, 60, 70],
        "twins": [40, 45, 50, 55],
        "rents": [0, 2, 2, 2],
        "final_score": 70,
        "final_twin": 55,
        "final_rent": 2,
    }
    return Episode(**(base | changes))  # type: ignore[arg-type]


def undiscounted(episode: Episode) -> float:
    return discounted(episode.rewards(1.0), 1.0)


def test_the_hosts_own_improvement_pays_nothing() -> None:
    """The same curve on top of a twin that improves alike."""
    own = grown(
        scores=[40, 60, 80, 90], twins=[40, 60, 80, 90], rents=[0] * 4, final_score=90, final_twin=90, final_rent=0
    )
    assert undiscounted(own) == 0


def test_a_module_the_host_depends_on_pays_only_if_the_total_is_better_than_the_twin() -> None:
    """Switching it off would cost 30 points, yet host and module together are worse than the twin."""
    assert undiscounted(grown(scores=[40, 42, 44, 45], final_score=45)) == 45 - 55 - 2


def test_churn_pays_nothing() -> None:
    """Going up and down by 30 points, in and out of rent, ends where a calm episode ends."""
    churn = grown(scores=[40, 80, 45, 75], rents=[9, 0, 9, 0])
    assert undiscounted(churn) == pytest.approx(undiscounted(grown()))


def test_holding_for_ever_forfeits_the_module() -> None:
    """Not fossilized: off in the final score, whatever it gave on the way."""
    assert undiscounted(grown(final_score=50, final_rent=0)) == 50 - 55


def test_a_lucky_peak_is_not_paid() -> None:
    assert undiscounted(grown(scores=[40, 95, 60, 70])) == undiscounted(grown())


def test_rent_cannot_be_dodged_at_the_last_step() -> None:
    """Culling in the last epoch frees the rent and loses the gain with it."""
    assert undiscounted(grown(rents=[0, 2, 2, 0], final_score=55, final_rent=0)) == 0


def test_late_germination_earns_no_bonus() -> None:
    """A module that never got beyond alpha 0 changes neither score nor rent."""
    late = grown(scores=[40, 45, 50, 55], rents=[0] * 4, final_score=55, final_rent=0)
    assert late.rewards(1.0) == [0.0] * 4


def test_crashing_is_worse_than_the_worst_end() -> None:
    crash = grown(scores=[40, 50], twins=[40, 45], rents=[0, 2], crashed=True, final_score=NAN, final_rent=NAN)
    assert undiscounted(crash) == CHANCE - 55 - 2 - PENALTY
    assert undiscounted(crash) < undiscounted(grown(final_score=CHANCE, final_rent=2))


# ------------------------------------------------------------------------------------------------------------- rent


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
    assert rent(added, host, 3.0, "linear").tolist() == [0, 3, 6]
    expected = [0, 3 * 0.6931471805599453, 3 * 1.0986122886681098]
    assert rent(added, host, 3.0, "log").tolist() == pytest.approx(expected)
    with pytest.raises(ValueError, match="rent 'cubic' is unknown; choose one of linear, log"):
        rent(added, host, 3.0, "cubic")


def test_the_registry_knows_its_families() -> None:
    assert set(REWARDS) == {"paired"}
    family = reward_family("paired")
    half = torch.tensor([0.5])
    assert family.score(half, half, half).tolist() == probability_score(half, half, half).tolist() == [50.0]
    assert family.step is paired_reward
    with pytest.raises(ValueError, match="reward family 'lottery' is unknown; choose one of paired"):
        reward_family("lottery")
