"""Growth policies cheat. One test per cheat: a controller scripted to cheat earns less than an honest one.

On real hosts one episode is played and paid by every reward family at once, with and without stage shaping: rewards do
not change what a scripted controller does. The same cheats follow as curves, where the arithmetic alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from helpers import action, small_env, small_experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_episodes import CHANCE, NAN, PENALTY, Episode, points
from torch import Tensor

from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.records import EnvView
from esper.envs.rewarder import Rewarder
from esper.envs.rewards import REWARDS, Potential
from esper.experiment.build import Experiment
from esper.growth import Stage
from esper.growth.actions import AlphaSpeed, AlphaTarget, Op
from tests.tiers import few

BOTTLENECK = USEFUL = 5
STARVED = 1
"""The slot behind the starved block: a module pays here."""
FAMILIES = tuple(REWARDS)

EPOCHS = 12
Script = Callable[[EnvView, int], Tensor]
"""Function from the view to the row of the desired action."""
WAIT = action(Op.WAIT)


# ------------------------------------------------------------------------------------------------------- controllers


def grow(slot: int, blueprint: int, *, since: int = 0, commit: bool = True, target: int = AlphaTarget.FULL) -> Script:
    """Germinate in an empty slot from an epoch on; FOSSILIZE when it is legal, or hold."""

    def act(view: EnvView, row: int) -> Tensor:
        if view.history.epoch[row] >= since and view.state.stage[row, slot] == Stage.DORMANT:
            return action(Op.GERMINATE, slot=slot, blueprint=blueprint, alpha_target=target)
        if commit and view.observation.masks.slot[row, Op.FOSSILIZE, slot]:
            return action(Op.FOSSILIZE, slot=slot)
        return WAIT

    return act


def at_the_end(script: Script, last: Tensor) -> Script:
    """A script with another action in the last epoch."""
    return lambda view, row: last if view.history.epoch[row] == EPOCHS - 1 else script(view, row)


def cull(speed: AlphaSpeed = AlphaSpeed.INSTANT) -> Tensor:
    return action(Op.CULL, slot=STARVED, alpha_speed=speed)


def churn(stage: Stage) -> Script:
    """Germinate, cull as soon as a stage is reached, and again."""
    hold = grow(STARVED, USEFUL, commit=False)

    def act(view: EnvView, row: int) -> Tensor:
        return cull() if view.state.stage[row, STARVED] == stage else hold(view, row)

    return act


def incubate(view: EnvView, row: int) -> Tensor:
    """Keep a module in TRAINING until the end."""
    if view.state.stage[row, STARVED] == Stage.TRAINING:
        return action(Op.EXTEND, slot=STARVED)
    return grow(STARVED, USEFUL)(view, row)


def never(view: EnvView, row: int) -> Tensor:
    return WAIT


SCRIPTS: dict[str, Script] = {
    "never": never,
    "honest": grow(STARVED, USEFUL),
    "half": grow(STARVED, USEFUL, target=AlphaTarget.HALF),
    "late_commit": at_the_end(grow(STARVED, USEFUL, commit=False), action(Op.FOSSILIZE, slot=STARVED)),
    "lucky": grow(STARVED, USEFUL),
    "hold": grow(STARVED, USEFUL, commit=False),
    "dodge": at_the_end(grow(STARVED, USEFUL, commit=False), cull()),
    "fade": at_the_end(grow(STARVED, USEFUL, commit=False), cull(AlphaSpeed.SLOW)),
    "churn": churn(Stage.HOLDING),
    "churn_early": churn(Stage.TRAINING),
    "incubate": incubate,
    "late": grow(STARVED, USEFUL, since=EPOCHS - 3),
    "crash": grow(STARVED, USEFUL),
    "crash_at_once": never,
    "crash_at_the_end": grow(STARVED, USEFUL),
}
CRASHES = {"crash": 8, "crash_at_once": 0, "crash_at_the_end": EPOCHS - 1}


def sabotage(env: GrowthEnv, rows: Mapping[str, int], epoch: int) -> None:
    """Break a host or spoil a lucky module, which no action could do."""
    for name, when in CRASHES.items():
        if epoch == when:
            env.population.hosts.values.detach()[rows[name], 3] = torch.nan
    if epoch == EPOCHS - 1:
        module = env.population.modules[STARVED, USEFUL]
        module.values.detach()[module.row(rows["lucky"])] *= -4


# ------------------------------------------------------------------------------------------------------------ playing


@dataclass(frozen=True)
class Played:
    """One episode of one script under one reward.

    Attributes:
        steps: components of every reward, unscaled.
    """

    steps: list[dict[str, float]]

    @property
    def rewards(self) -> list[float]:
        return [sum(step.values()) for step in self.steps]

    @property
    def parts(self) -> dict[str, float]:
        """Sum of each component."""
        return {name: sum(step[name] for step in self.steps) for name in self.steps[0]}

    @property
    def paid(self) -> float:
        return sum(self.rewards)


Reward = tuple[str, float]
"""Family and points of stage shaping."""
REWARDS_PAID: tuple[Reward, ...] = tuple((family, shaping) for shaping in (0.0, 2.0) for family in FAMILIES)


def play(
    env: GrowthEnv,
    scripts: list[Script],
    before: Callable[[GrowthEnv, int], None] = lambda env, epoch: None,
) -> dict[Reward, list[Played]]:
    """One episode of every script, paid by every reward."""
    books = {reward: Potential.start(env.num_envs) for reward in REWARDS_PAID}
    components: dict[Reward, list[dict[str, Tensor]]] = {reward: [] for reward in REWARDS_PAID}
    rewarder, plain = env.rewarder, env.settings

    def pay(*measured: Any, **named: Any) -> tuple[dict[str, Tensor], Tensor]:
        for reward in REWARDS_PAID:
            rewarder.family, rewarder.settings = REWARDS[reward[0]], replace(plain, stage_shaping=reward[1])
            rewarder.potential = books[reward]
            paid, breakdown = Rewarder.pay(rewarder, *measured, **named)
            components[reward].append(paid)
            books[reward] = rewarder.potential
        return components[reward][-1], breakdown

    rewarder.pay = pay  # type: ignore[method-assign]
    rewarder.family = REWARDS["contribution"]  # the last one, too: validation measures all off for it
    observation = env.reset()
    lengths = torch.zeros(env.num_envs, dtype=torch.int64)
    over = torch.zeros(env.num_envs, dtype=torch.bool)
    for epoch in range(env.num_epochs):
        before(env, epoch)
        view = env.view(observation)
        rows = [WAIT if over[row] else script(view, row) for row, script in enumerate(scripts)]
        result = env.step(torch.stack(rows))
        observation = result.observation
        assert result.applied.success.all(), "scripts keep to the law"
        lengths += ~over
        over |= result.terminated
        if epoch + 1 < env.num_epochs and result.terminated.any():
            observation = env.reset(result.terminated)
    assert over.all()
    played: dict[Reward, list[Played]] = {}
    for reward, steps in components.items():
        played[reward] = [
            Played([{name: float(part[row]) for name, part in step.items()} for step in steps[: lengths[row]]])
            for row in range(env.num_envs)
        ]
    return played


def experiment(epochs: int, steps: int, samples: int) -> Experiment:
    return small_experiment(
        f"env.num_epochs={epochs}",
        f"env.steps_per_epoch={steps}",
        "task.batch_size=32",
        "slots.min_training_epochs=2",
        samples=samples,
    )


@cache
def starved() -> tuple[dict[Reward, dict[str, Played]], float]:
    """All scripts on one and the same host, starved in its second block, and how many points its twin gains."""
    env = small_env(experiment(EPOCHS, 4, 64), num_envs=len(SCRIPTS), families=["starved_1"])
    env.pool = InstancePool(env.pool.instances[:1])
    rows = {name: row for row, name in enumerate(SCRIPTS)}
    found = play(env, list(SCRIPTS.values()), lambda env, epoch: sabotage(env, rows, epoch))
    assert env.rewarder.twins is not None
    curve = env.rewarder.twins[env.pool[0]].points
    named = {reward: dict(zip(SCRIPTS, played, strict=True)) for reward, played in found.items()}
    return named, float(curve[-1] - curve[0])


@cache
def needless() -> tuple[dict[Reward, list[Played]], float]:
    """A dear module on intact hosts, which do about as well without; and how many points their twins gain."""
    env = small_env(experiment(14, 8, 128), num_envs=4, families=["intact"], rent_weight=12.0)
    found = play(env, [grow(2, BOTTLENECK)] * env.num_envs)
    assert env.rewarder.twins is not None
    gains = [
        env.rewarder.twins[instance].points[-1] - env.rewarder.twins[instance].points[0] for instance in env.instances
    ]
    return found, float(torch.stack(gains).mean())


def mean(played: list[Played]) -> float:
    return sum(each.paid for each in played) / len(played)


every_reward = pytest.mark.parametrize("reward", REWARDS_PAID, ids=lambda reward: f"{reward[0]}-{reward[1]}")


# ------------------------------------------------------------------------------------------------- cheats, real hosts


@every_reward
@few(2)
def test_an_honest_controller_is_paid(reward: Reward) -> None:
    """Otherwise earning less than it would mean nothing."""
    assert starved()[0][reward]["honest"].paid > 3


@every_reward
def test_the_hosts_own_improvement_pays_nothing(reward: Reward) -> None:
    """Hosts that improve by themselves, with nothing in them or a module that never acts on them, bit for bit."""
    found, gain = starved()
    assert gain > 5
    assert found[reward]["never"].rewards == [0.0] * EPOCHS
    incubated = found[reward]["incubate"]
    assert incubated.paid == incubated.parts["gain"] == incubated.parts["rent"] == 0
    assert (incubated.rewards == [0.0] * EPOCHS) == (reward[1] == 0), "only what stage shaping lends and takes back"


@pytest.mark.parametrize("family", ["paired", "loss"])
@few(1)
def test_a_module_the_host_has_come_to_depend_on_is_not_paid_for_that(family: str) -> None:
    """The hosts improve by 50 points and lose 20 when the module is switched off, yet it is not worth its rent."""
    found, gain = needless()
    assert gain > 40
    assert mean(found["contribution", 0.0]) > 5
    assert mean(found[family, 0.0]) < -2


def test_contribution_pays_dependence() -> None:
    """The documented limitation of that family: modules that are not worth their rent are paid on every host."""
    found, _ = needless()
    assert all(played.paid > 0 for played in found["contribution", 0.0])
    assert mean(found["contribution", 0.0]) > mean(found["paired", 0.0]) + 10


@every_reward
def test_churn_earns_less_than_growing(reward: Reward) -> None:
    played = starved()[0][reward]
    assert played["churn"].paid < played["honest"].paid - 3
    assert played["churn"].parts["rent"] == pytest.approx(0, abs=1e-9), "rent of what is gone is given back"
    assert played["churn_early"].paid == 0
    if reward[0] == "contribution":
        assert played["churn"].paid == pytest.approx(0, abs=1e-9)
    # It looks like something on the way.
    assert max(played["churn"].rewards) > 0


@every_reward
def test_holding_for_ever_forfeits_the_module(reward: Reward) -> None:
    played = starved()[0][reward]
    assert played["hold"].paid < played["honest"].paid - 3
    promised = sum(played["hold"].rewards[:-1]) - reward[1] * (Stage.HOLDING - Stage.DORMANT)
    assert promised > 0 >= played["hold"].paid - 1e-9
    if reward[0] == "contribution":
        assert played["hold"].paid == pytest.approx(0, abs=1e-9)


@every_reward
def test_a_lucky_peak_is_not_what_is_paid(reward: Reward) -> None:
    """A module is paid for what it is at the end, whenever it was committed to."""
    played = starved()[0][reward]
    assert played["late_commit"].paid == pytest.approx(played["honest"].paid, abs=1e-9)
    assert played["lucky"].rewards[:-1] == played["honest"].rewards[:-1], "until the luck ends"
    assert played["lucky"].paid < played["honest"].paid - 3


@every_reward
@pytest.mark.parametrize("cheat", ["dodge", "fade"])
def test_rent_cannot_be_dodged_at_the_last_step(reward: Reward, cheat: str) -> None:
    """A cull in the last epoch, at once or fading, saves the rent and loses more."""
    played = starved()[0][reward]
    assert played[cheat].parts["rent"] == pytest.approx(0, abs=1e-9)
    assert played[cheat].paid < played["honest"].paid - 3
    if reward[0] == "contribution":
        assert played[cheat].paid == pytest.approx(0, abs=1e-9)


@every_reward
def test_half_alpha_pays_the_same_rent(reward: Reward) -> None:
    played = starved()[0][reward]
    half, honest = ([step["rent"] for step in played[name].steps] for name in ("half", "honest"))
    assert half == honest
    assert sum(half) < 0
    assert played["half"].parts["gain"] != played["honest"].parts["gain"]


@every_reward
def test_late_germination_earns_no_stage_bonus(reward: Reward) -> None:
    """The bonus for reaching TRAINING is taken back in the last epoch, and BLENDING after it earns nothing."""
    late = starved()[0][reward]["late"]
    shaping = reward[1]
    assert late.paid == 0
    assert late.rewards[-3:] == [2 * shaping, 0, -2 * shaping]


@every_reward
@pytest.mark.parametrize("cheat", list(CRASHES))
def test_crashing_earns_less_than_doing_nothing(reward: Reward, cheat: str) -> None:
    played = starved()[0][reward]
    assert len(played[cheat].rewards) == CRASHES[cheat] + 1
    assert played[cheat].paid <= -10 < played["never"].paid < played["honest"].paid


@pytest.mark.parametrize("name", list(SCRIPTS))
@pytest.mark.parametrize("family", FAMILIES)
def test_stage_shaping_changes_when_but_not_how_much(family: str, name: str) -> None:
    plain, shaped = (starved()[0][family, shaping][name] for shaping in (0.0, 2.0))
    assert shaped.parts["stage"] == 0
    assert shaped.paid == pytest.approx(plain.paid, abs=1e-9)
    idle = name in ("never", "crash_at_once")
    assert (shaped.rewards == plain.rewards) == idle


# ----------------------------------------------------------------------------------------------------- cheats, curves

every_family = pytest.mark.parametrize("family", FAMILIES)


def grown(**changes: object) -> Episode:
    """An honest episode: 15 points over the twin and over all off, rent of 2."""
    base: dict[str, object] = {
        "scores": [40, 50, 60, 70],
        "twins": [40, 45, 50, 55],
        "offs": [40, 45, 50, 55],
        "rents": [0, 2, 2, 2],
        "final_score": 70,
        "final_twin": 55,
        "final_rent": 2,
    }
    return Episode(**(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("family", "paid"), [("paired", -12), ("loss", -12), ("contribution", 28)])
def test_dependence_pays_only_under_contribution(family: str, paid: float) -> None:
    """Switching the module off costs 30 points, yet host and module together are 10 points worse than the twin."""
    worse = grown(scores=[40, 42, 44, 45], offs=[40, 30, 20, 15], final_score=45)
    assert worse.paid(family=family) == paid


@every_family
@settings(max_examples=50, deadline=None)
@given(data=st.data(), gamma=st.sampled_from([1.0, 0.97]))
def test_nothing_on_the_way_is_paid(family: str, data: st.DataObject, gamma: float) -> None:
    """Any peaks, any churn in and out of rent, any stages: the pay is that of the calm episode with the same end."""

    def path(values: st.SearchStrategy[float]) -> list[float]:
        return data.draw(st.lists(values, min_size=3, max_size=3))

    wild = grown(
        scores=[*path(points), 70],
        twins=[*path(points), 55],
        offs=[*path(points), 55],
        rents=[*path(st.floats(0, 50)), 2],
        stages=[*path(st.sampled_from([0.0, 2.0, 4.0, 10.0])), 10],
    )
    assert wild.paid(gamma, family) == pytest.approx(grown().paid(gamma, family), abs=1e-9)


@every_family
@settings(max_examples=50, deadline=None)
@given(twin=points, rent=st.floats(0, 50), scores=st.lists(points, min_size=1, max_size=6))
def test_crashing_on_purpose_never_pays(family: str, twin: float, rent: float, scores: list[float]) -> None:
    """Less than doing nothing, however badly the twin ends (a loss has no floor), and by the penalty at least."""
    end = max(twin, CHANCE[family]) if family == "paired" else twin
    crash = Episode(
        scores=scores,
        twins=scores,
        offs=scores,
        rents=[rent] * len(scores),
        crashed=True,
        final_score=NAN,
        final_rent=NAN,
        final_twin=end,
    )
    assert crash.paid(family=family) <= -rent - PENALTY + 1e-9


@pytest.mark.parametrize("family", ["paired", "loss"])
def test_crashing_is_worse_than_ending_at_chance(family: str) -> None:
    crash = grown(scores=[40, 50], rents=[0, 2], crashed=True, final_score=NAN, final_rent=NAN)
    assert crash.paid(family=family) == CHANCE[family] - 55 - 2 - PENALTY
    assert crash.paid(family=family) < grown(final_score=CHANCE[family], final_rent=2).paid(family=family)
