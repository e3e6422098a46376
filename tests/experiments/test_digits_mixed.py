"""The landscape of digits_mixed: networks built whole are those of the environment, and rivals see what they may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import small_env, small_experiment

from esper.blueprints import blueprint_ids
from esper.controllers import Static
from experiments.digits_mixed.grown import Grown
from experiments.digits_mixed.landscape import CEILING, table
from experiments.digits_mixed.returns import Networks, Pair
from experiments.digits_mixed.rivals import (
    Bandit,
    Episodes,
    Landscape,
    Trials,
    all_plans,
    best_rule,
    few_plans,
    fixed_plan,
    left_out,
    plan_per_price,
    predicted_gains,
    rules,
    shrunk,
    told,
    tried,
)
from experiments.hosts import again

KINDS = ("conv_small", "conv_light")
PLANS = all_plans(KINDS, 3)
PRICES = np.array([1.0, 8.0])


def test_a_network_earns_what_the_environment_pays_for_it_and_is_measured_once(tmp_path: Path) -> None:
    experiment = small_experiment("env.num_epochs=2", "env.mapping=grouped")
    env = small_env(experiment)
    plan = ("conv_small", None, "conv_light")
    modules = [(slot, blueprint_ids().index(name)) for slot, name in enumerate(plan) if name]
    env.reset()
    env.plant(dict.fromkeys(range(3), modules))
    for _ in range(env.num_epochs):
        result = env.step(Static([modules] * 3, "static").act(env.view(env.observation())))
    paid = {episode.instance: episode.episode_return for episode in result.episodes}
    networks = Networks(experiment, tmp_path / "found.jsonl", height=3)
    gains, shares = networks.gains([Pair(plan=plan, instance=instance) for instance in paid])
    assert (gains - env.settings.rent_weight * shares).tolist() == pytest.approx(list(paid.values()), abs=1e-3)
    again = Networks(experiment, tmp_path / "found.jsonl", height=2)
    assert again.scores([Pair(plan=plan, instance=instance) for instance in paid]) == networks.scores(
        [Pair(plan=plan, instance=instance) for instance in paid]
    )
    priced = [replace(instance, index=7, rent_weight=9.0) for instance in paid]
    assert again.gains([Pair(plan=plan, instance=host) for host in priced])[0].tolist() == gains.tolist()
    assert again.num_trained == 0, "a price and a place in the pool do not change a network"
    other, _ = again.gains([Pair(plan=plan, instance=host, run=1) for host in priced])
    assert again.num_trained == 6
    assert (other != gains).all()


def test_a_plan_that_is_grown_is_kept_whole_and_none_leaves_the_host_as_it_is(tmp_path: Path) -> None:
    words = ("env.num_epochs=12", "env.mapping=matmul", "slots.max_seeds=3", "slots.max_developing=3")
    experiment = small_experiment(*words)
    hosts, plan = experiment.pool("held_out", 2).instances, ("conv_small", None, "conv_light")
    pairs = [Pair(plan=plan, instance=host, run=run) for host in hosts for run in (0, 1)]
    grown = Grown(experiment, tmp_path / "grown.jsonl", height=4)
    whole = Networks(experiment, tmp_path / "whole.jsonl", height=4)
    bare = [replace(pair, plan=(None,) * 3) for pair in pairs]
    assert [score.share for score in grown.scores(pairs)] == [score.share for score in whole.scores(pairs)]
    assert [score.points for score in grown.scores(bare)] == pytest.approx(
        [
            score.points
            for score in whole.scores([replace(pair, instance=again(pair.instance, pair.run), run=0) for pair in bare])
        ]
    )
    assert len({score.points for score in grown.scores([*pairs, *bare])}) == 8
    assert grown.num_trained == 8


@pytest.fixture(scope="module")
def world() -> Landscape:
    """Forty hosts, each with one slot whose first probe is high: modules are worth something there only."""
    rng = np.random.default_rng(0)
    sick = rng.integers(0, 3, 40)
    probes = rng.normal(scale=0.1, size=(40, 3, 2))
    probes[np.arange(40), sick, 0] += 1
    gains = np.array([[20 * (plan[s] == "conv_light") + 8 * (plan[s] == "conv_small") for plan in PLANS] for s in sick])
    sizes = {None: 0.0, "conv_small": 0.5, "conv_light": 3.0}
    shares = np.array([[sum(sizes[kind] for kind in plan) for plan in PLANS]] * 40)
    return Landscape(gains.astype(float), shares, PRICES, probes, np.arange(40))


def test_rules_find_the_sick_slot_and_fixed_plans_cannot(world: Landscape) -> None:
    """At rent 1 the large module is worth 20 - 3, at rent 8 the small one 8 - 4; blindly, all three cost too much."""
    assert fixed_plan(world).mean() < plan_per_price(world).mean() < 8
    rule = best_rule(world, rules(PLANS, world.probes, KINDS))
    assert rule.mean(0).tolist() == pytest.approx([17.0, 4.0])
    assert world.returns.max(2).mean(0).tolist() == [17.0, 4.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ridge", "mlp", "forest"])
def test_bandits_find_the_sick_slot(world: Landscape, kind: str) -> None:
    rng = np.random.default_rng(1)
    chosen, hosts = rng.integers(0, len(PLANS), 400), rng.integers(0, 40, 400)
    plans = [PLANS[number] for number in chosen]
    known = Episodes(hosts, world.probes[hosts], plans, world.gains[hosts, chosen])
    assert world.of(world.best(Bandit(kind, PLANS, KINDS).fit(known).predict(world.probes))).mean() > 9


@pytest.mark.slow
def test_a_bandit_is_judged_on_joins_that_it_has_not_seen() -> None:
    """Gains have nothing to do with probes here: of another host of the join it could know the plan that pays."""
    rng = np.random.default_rng(2)
    gains = np.zeros((6, len(PLANS)))
    gains[np.arange(6), rng.integers(1, len(PLANS), 6)] = 100
    gains, probes = (np.repeat(part, 2, axis=0) for part in (gains, rng.normal(size=(6, 3, 2))))
    twins = Landscape(gains, np.zeros_like(gains), PRICES, probes, np.repeat(np.arange(6), 2))
    nothing = Episodes(np.empty(0, dtype=int), np.empty((0, 3, 2)), [], np.empty(0))
    for joins, known in ((twins.joins, False), (np.arange(12), True)):
        odd = replace(twins, joins=joins)
        earned = odd.of(odd.best(predicted_gains("forest", nothing, odd, PLANS, KINDS))).mean()
        assert (earned > 75) if known else (earned < 25), earned


def test_one_measurement_counts_by_its_share_of_what_varies() -> None:
    rng = np.random.default_rng(3)
    true, predicted = rng.normal(scale=3, size=(40, 60)), np.zeros((40, 60))
    measured = true + rng.normal(scale=4, size=true.shape)
    posterior = shrunk(measured, predicted, noise=16)
    assert (posterior / measured).mean() == pytest.approx(9 / 25, abs=0.05)
    assert ((posterior - true) ** 2).mean() < min(((measured - true) ** 2).mean(), (true**2).mean())
    assert np.array_equal(shrunk(measured, predicted, noise=100), predicted), "all of it may be noise"


def test_trials_keep_what_leads_and_pay_with_its_epochs(world: Landscape) -> None:
    """Modules are worth half as much half-way: the good one is found there, and has no epochs left, unless for free."""
    half = np.stack([world.gains / 2, world.gains], axis=-1)[None]
    trials = Trials(half, half)
    everything = np.broadcast_to(np.arange(len(PLANS)), (40, len(PRICES), len(PLANS)))
    assert tried(world, trials, everything, (1,)).mean(0).tolist() == [17.0, 4.0]
    assert tried(world, trials, everything, (0,)).mean(0).tolist() == [7.0, 0.0]
    assert tried(world, trials, everything, (0,), whole=True).mean(0).tolist() == [17.0, 0.0]
    assert tried(world, trials, everything[..., 1:3], (0, 1)).mean() < 4, "among those tried"


def test_a_choice_is_made_on_the_other_hosts() -> None:
    values = np.array([[9.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert left_out(values).tolist() == [1, 0, 0], "each host's own value is left out"


def test_the_first_rule_grows_nothing_and_all_name_plans() -> None:
    acts = rules(PLANS, np.random.default_rng(0).random((5, 3, 2)), KINDS)
    assert acts.shape == (5, 1 + 2 * 2 * 10 * 2)
    assert {PLANS[number] for number in acts[:, 0]} == {(None, None, None)}
    full = {PLANS[number] for number in acts.flatten()}
    assert ("conv_light",) * 3 in full
    assert ("conv_light", "conv_small", None) not in full, "one blueprint"


def test_few_plans_are_all_of_two_blueprints_and_each_other_alone_or_everywhere() -> None:
    few = few_plans((*KINDS, "norm"), 3)
    assert len(set(few)) == len(few) == 27 + 4
    assert few[:27] == PLANS
    assert few[27:] == [("norm", None, None), (None, "norm", None), (None, None, "norm"), ("norm",) * 3]
    kinds = {kind for row in rules(few, np.random.default_rng(0).random((5, 3, 2)), ("norm",)).T for kind in row}
    assert {few[number] for number in kinds} <= {few[0], *few[27:]}, "no rule needs a plan that is not there"


def test_the_table_has_a_line_for_each_rival(world: Landscape) -> None:
    top = world.returns.max(2)
    found = {"never": np.zeros((40, 2)), CEILING: top}
    assert table(found, PRICES).splitlines()[2:] == [
        "| never | +0.0 | +0.0 | +0.0 | +10.5 ± 0.0 |",
        f"| {CEILING} | +10.5 | +17.0 | +4.0 |  |",
    ]


def test_a_trial_tells_what_the_lead_holds_and_the_host_alone_does_not() -> None:
    """At mark 1 the lead is half of the gain, at mark 0 noise; the host's own points have nothing to do with it."""
    rng = np.random.default_rng(5)
    gains = rng.normal(scale=5, size=(40, len(PLANS)))
    over = np.stack([rng.normal(size=gains.shape), gains / 2, gains], axis=-1)[None]
    trials, curves = Trials(over, over), rng.normal(size=(40, 2))
    (alone, noise), (still, lead) = (told(trials, np.zeros_like(gains), curves, mark) for mark in (0, 1))
    assert max(alone, noise, still) < 0.02
    assert lead == pytest.approx(1.0)
