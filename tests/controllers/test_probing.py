"""Rules that look before they grow: at probes and scores, or at modules tried side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import play_episode, small_env, small_experiment
from schema_defaults import growth_rules
from simulated import Simulated, fits_all
from torch import Tensor

from esper.config.plugins import activate
from esper.controllers import CONTROLLERS, ProbeAndKeep, ProbeAndKeepParameters, ProbeRule, ProbeRuleParameters
from esper.envs.features import num_features
from esper.envs.records import EnvView
from esper.growth import GrowthRules, Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Blueprint, Head
from tests.tiers import few

DIGITS = growth_rules(max_developing=3, max_seeds=1, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)


class Probed(Simulated):
    """Environments with given slot probes ``[E, S, 4]`` and val accuracies ``[E]``."""

    def __init__(self, probes: Tensor, accuracy: Tensor) -> None:
        super().__init__(len(probes), fits_all(probes.shape[1]), DIGITS, sick=0.0)
        self.probes, self.accuracy = probes, accuracy

    def view(self) -> EnvView:
        view = super().view()
        features = view.observation.features.clone()
        features[:, num_features(self.num_slots) :] = self.probes.flatten(1)
        features = torch.cat(
            [features, torch.full((len(features), 1), 2.0)], dim=1
        )  # the price, which it does not read
        self.history.accuracies[:, -1] = self.accuracy
        return replace(view, observation=replace(view.observation, features=features))


def germinations(actions: Tensor, environment: int) -> list[tuple[int, int, int]]:
    """(step, slot, blueprint) of each, of ``int64 [T, E, 8]``."""
    rows = actions[:, environment]
    return [
        (step, int(row[Head.SLOT]), int(row[Head.BLUEPRINT]))
        for step, row in enumerate(rows)
        if row[Head.OP] == OP_GERMINATE
    ]


# --------------------------------------------------------------------------------------------------------- probe_rule


def test_it_grows_where_channels_are_dead_or_else_by_the_score_or_not_at_all() -> None:
    probes = torch.zeros(4, 3, 4)
    probes[0, 2, 0], probes[1, 0, 0], probes[2, 1, 0] = 0.9, 0.7, 0.2
    rule = ProbeRuleParameters(
        blueprint="depthwise", min_starvation=0.5, check_epoch=3, max_accuracy=0.4, default_slot=1
    )
    world = Probed(probes, torch.tensor([0.9, 0.9, 0.3, 0.9]).double())
    actions = world.play(ProbeRule([rule] * 4), 15)
    grown = [germinations(actions, environment) for environment in range(4)]
    kind = int(Blueprint.DEPTHWISE)
    assert grown == [[(0, 2, kind)], [(0, 0, kind)], [(3, 1, kind)], []]
    assert (world.state.stage == Stage.FOSSILIZED).sum(dim=1).tolist() == [1, 1, 1, 0], "what grew is kept"


@pytest.mark.parametrize(("name", "slots"), [("one_bit", (2, 1)), ("no_bit", (1, 1))])
def test_a_rule_of_one_bit_looks_at_the_last_slot_only(name: str, slots: tuple[int, int]) -> None:
    activate(["experiments.growth_pays.simple"])
    rule = CONTROLLERS[name](None)
    activate([])
    probes = torch.zeros(2, 3, 4)
    probes[0, 2, 0], probes[1, :, 0] = 0.75, torch.tensor([0.9, 0.9, 0.6])
    world = Probed(probes, torch.zeros(2).double())
    actions = world.play(rule, 20)
    heavy = int(Blueprint.CONV_HEAVY)
    assert [germinations(actions, environment) for environment in range(2)] == [[(0, slot, heavy)] for slot in slots]
    assert (world.state.stage == Stage.FOSSILIZED).sum(1).tolist() == [1, 1]


def test_every_threshold_and_weight_of_the_probe_rule_counts() -> None:
    """One environment per rule, the same host for all: slot 0 has low rank, slot 1 gradient, slot 2 gain."""
    probes = torch.zeros(1, 3, 4)
    probes[..., 1] = 1.0
    probes[0, 0, 1], probes[0, 1, 2], probes[0, 2, 3] = 0.2, 0.6, 0.7
    none = ProbeRuleParameters(min_starvation=0.5, max_accuracy=0.0)
    rules = [
        none,
        replace(none, rank_weight=1.0),
        replace(none, gradient_weight=1.0),
        replace(none, gain_weight=1.0),
        replace(none, rank_weight=1.0, gain_weight=1.0, num_modules=2),
        replace(none, rank_weight=1.0, min_starvation=0.9),
        replace(none, max_accuracy=0.6, check_epoch=5, default_slot=2),
        replace(none, min_starvation=0.0),
    ]
    world = Probed(probes.expand(len(rules), -1, -1), torch.full((len(rules),), 0.5).double())
    actions = world.play(ProbeRule(rules), 10)
    grown = [[pair[:2] for pair in germinations(actions, environment)] for environment in range(len(rules))]
    assert grown == [[], [(0, 0)], [(0, 1)], [(0, 2)], [(0, 0), (1, 2)], [], [(5, 2)], [(0, 0)]]


def test_the_probe_rule_takes_the_probes_that_are_observed_and_needs_one() -> None:
    """With some probes omitted it reads the others at their positions: in all hosts block 1 is dead."""
    rule = ProbeRuleParameters(rank_weight=1.0, gain_weight=5.0, max_accuracy=0.0)
    grown = []
    for probes in ("[dead_channels]", "[effective_rank,dead_channels]", "[]"):
        experiment = small_experiment(f"observation.slot_probes={probes}", "env.num_epochs=2")
        env = small_env(experiment, families=["starved_1"])
        if probes == "[]":
            with pytest.raises(ValueError, match=r"probe_rule needs observation\.slot_probes: some of dead_channels, "):
                play_episode(env, ProbeRule([rule] * 3))
            continue
        play_episode(env, ProbeRule([rule] * 3))
        grown.append(env.state.present.tolist())
    assert grown == [[[False, True, False]] * 3] * 2


# ----------------------------------------------------------------------------------------------------- probe_and_keep


def promising(values: list[float], rules: GrowthRules = DIGITS, num_envs: int = 2) -> Simulated:
    """Give modules a fixed contribution in each slot, from the first preview to the end."""
    points = torch.tensor(values).double()
    return Simulated(num_envs, fits_all(len(values)), rules, worth=points.expand_as, sick=0.0)


@pytest.mark.parametrize("best", [0, 1, 2])
@pytest.mark.parametrize("look_age", [1, 2, 3])
@pytest.mark.parametrize("max_developing", [1, 2, 3])
@pytest.mark.parametrize("max_seeds", [1, 2])
@few(12)
def test_every_slot_is_tried_once_and_the_best_are_kept(
    best: int, look_age: int, max_developing: int, max_seeds: int
) -> None:
    """Independent of the order of trials, and of modules that take the place meanwhile."""
    values = [3.0, 2.0, 1.0]
    values[best] = 9.0
    rules = replace(DIGITS, max_developing=max_developing, max_seeds=max_seeds)
    world = promising(values, rules)
    chooser = ProbeAndKeep([ProbeAndKeepParameters(blueprint="norm", look_age=look_age)] * 2, 3, max_seeds)
    actions = world.play(chooser, 40)
    for environment in range(2):
        assert [slot for _, slot, _ in germinations(actions, environment)] == [0, 1, 2]
        kept = (world.state.stage[environment] == Stage.FOSSILIZED).nonzero().flatten().tolist()
        assert set(kept) == set(sorted(range(3), key=lambda slot: -values[slot])[:max_seeds])
    assert not world.state.live.any(), "the others are gone"


def test_side_by_side_it_has_decided_within_a_few_epochs() -> None:
    actions = promising([1.0, 2.0, 9.0]).play(ProbeAndKeep([ProbeAndKeepParameters()] * 2, 3, 1), 25)
    assert [step for step, *_ in germinations(actions, 0)] == [0, 1, 2]
    kept = (actions[:, 0, Head.OP] == OP_FOSSILIZE).nonzero().flatten().tolist()
    assert len(kept) == 1
    assert kept[0] <= 10


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (ProbeAndKeepParameters(min_preview=1.0, keep_points=1.0), True),
        (ProbeAndKeepParameters(min_preview=3.0, keep_points=1.0), False),
        (ProbeAndKeepParameters(min_preview=1.0, keep_points=3.0), False),
    ],
)
def test_what_does_not_promise_enough_or_is_not_worth_enough_is_culled(
    parameters: ProbeAndKeepParameters, kept: bool
) -> None:
    world = promising([0.5, 2.0, 0.0])
    actions = world.play(ProbeAndKeep([parameters] * 2, 3, 1), 25)
    assert (world.state.stage == Stage.FOSSILIZED).sum(dim=1).tolist() == [kept, kept]
    assert int((actions[:, 0, Head.OP] == OP_CULL).sum()) == 3 - kept


def test_equal_previews_go_to_the_first_slot_and_modules_that_never_blend_are_given_up() -> None:
    world = promising([2.0, 2.0, 2.0])
    world.play(ProbeAndKeep([ProbeAndKeepParameters()] * 2, 3, 1), 25)
    assert (world.state.stage[:, 0] == Stage.FOSSILIZED).all()
    sick = Simulated(1, fits_all(3), replace(DIGITS, max_developing=1), worth=lambda noise: 1 + noise.abs(), sick=1.0)
    actions = sick.play(ProbeAndKeep([ProbeAndKeepParameters()], 3, 1), 40)
    assert [slot for _, slot, _ in germinations(actions, 0)] == [0, 1, 2]
