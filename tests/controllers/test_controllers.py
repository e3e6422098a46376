"""All controllers: always legal, reproducible, and true to their purpose."""

from __future__ import annotations

from io import BytesIO

import pytest
import torch
from helpers import controller, give_opinions, play_episode, small_env, small_experiment, some_tuning
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_defaults import growth_rules
from simulated import NUM_EPOCHS, Simulated, fits_all
from torch import Tensor

from esper.controllers import (
    CONTROLLERS,
    Controller,
    ControllerContext,
    Learned,
    PlannedGermination,
    Schedule,
    Space,
    Static,
    build_controller,
    needed_by,
)
from esper.experiment.build import Experiment
from esper.growth import Stage
from esper.growth.actions import (
    NUM_BLUEPRINTS,
    NUM_OPS,
    OP_GERMINATE,
    OP_WAIT,
    Blueprint,
    Head,
    Op,
    Tempo,
    canonical,
    head_sizes,
)
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments
from esper.runtime.options import Greedy
from tests.tiers import few

STATELESS = ("never", "static_final", "static_full", "static_best")

DIGITS = growth_rules(max_developing=3, max_seeds=2, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)


def new_policy(num_slots: int, seed: int = 0, scale: float = 300.0) -> tuple[GrowthPolicy, Normaliser]:
    """Build a small policy with clear preferences."""
    torch.manual_seed(seed)
    policy = GrowthPolicy(
        num_slots,
        NUM_BLUEPRINTS,
        num_probes=4,
        encoder_dim=16,
        lstm_dim=16,
        head_dim=16,
        blueprint_head_dims=(16,),
        value_dim=16,
    )
    give_opinions(policy, scale)
    return policy, Normaliser(torch.ones(policy.num_features, dtype=torch.bool))


def build(name: str, num_envs: int, num_slots: int, seed: int = 0, deterministic: bool = False) -> Controller:
    policy, normaliser = new_policy(num_slots, seed)
    slot_ids = [f"r0c{slot}" for slot in range(num_slots)]
    plan = [PlannedGermination(epoch, slot, 1 + slot) for slot, epoch in enumerate(range(0, 3 * num_slots, 3))]
    context = ControllerContext(
        num_envs=num_envs,
        space=Space(slot_ids, fits_all(num_slots), DIGITS.max_seeds, NUM_EPOCHS),
        seed=seed,
        schedule=plan,
        policy=policy,
        normaliser=normaliser,
        deterministic=deterministic,
        greedy=Greedy.mode,
        families=["intact"] * num_envs,
        tuning=some_tuning(slot_ids),
        learned_kept=[[]] * num_envs,
    )
    return build_controller(name, context)


# --------------------------------------------------------------------------------------------------------- every one


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 2**31), num_slots=st.integers(1, 5))
@few(5)
def test_every_controller_is_always_legal(name: str, data: st.DataObject, seed: int, num_slots: int) -> None:
    """Checked in every step of play(), for any rules, fitting blueprints and measurements."""
    rules = growth_rules(
        max_developing=data.draw(st.integers(1, num_slots)),
        max_seeds=data.draw(st.integers(1, num_slots)),
        min_training_epochs=data.draw(st.integers(1, 3)),
        min_cull_age=data.draw(st.integers(0, 3)),
        embargo_epochs=data.draw(st.integers(0, 2)),
    )
    compatible = torch.rand(num_slots, NUM_BLUEPRINTS, generator=torch.Generator().manual_seed(seed)) < 0.4
    simulated = Simulated(3, compatible, rules, worth=lambda noise: 3 * noise, seed=seed)
    actions = simulated.play(build(name, 3, num_slots, seed), 25)
    assert actions.dtype == torch.int64
    assert (actions >= 0).all()
    assert (actions < torch.tensor(head_sizes(num_slots, NUM_BLUEPRINTS))).all()


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
@few(4)
def test_every_controller_plays_real_hosts_legally_and_the_same_twice(name: str) -> None:
    experiment = small_experiment("env.num_epochs=8")
    runs = []
    for _ in range(2):
        results = play_episode(small_env(experiment), controller(experiment, name))
        assert all(result.applied.success.all() for result in results)
        runs.append(torch.stack([result.reward for result in results]))
    assert torch.equal(*runs)


@pytest.mark.parametrize("name", sorted(set(CONTROLLERS) - {"random"}))  # whose draws are one stream for all
@few(5)
def test_resetting_some_environments_starts_them_anew_and_leaves_the_others(name: str) -> None:
    """After a reset an environment gets the decisions of a new controller; the others' decisions stay the same."""
    which = torch.arange(8) < 4
    worlds = [Simulated(8, fits_all(3), DIGITS) for _ in range(2)]
    controllers = [build(name, 8, 3, deterministic=True) for _ in range(2)]
    for world, each in zip(worlds, controllers, strict=True):
        world.play(each, 9)
    reset = controllers[0]
    reset.reset(which)
    for _ in range(8):
        some, all_ = (each.act(world.view()) for world, each in zip(worlds, controllers, strict=True))
        assert torch.equal(some[4:], all_[4:])
        worlds[0].step(some)
        worlds[1].step(torch.cat([some[:4], all_[4:]]))
    reset.reset(which)
    fresh, blank = build(name, 8, 3, deterministic=True), Simulated(8, fits_all(3), DIGITS)
    fresh.reset(torch.ones(8, dtype=torch.bool))
    for _ in range(8):
        some, new = (each.act(blank.view()) for each in (reset, fresh))
        assert torch.equal(some[:4], new[:4])
        blank.step(new)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", sorted(CONTROLLERS))
@few(8)
def test_a_controller_with_the_state_of_another_goes_on_as_it(name: str, deterministic: bool) -> None:
    world = Simulated(6, fits_all(3), DIGITS, worth=lambda noise: 3 * noise)
    first, second = (build(name, 6, 3, deterministic=deterministic) for _ in range(2))
    world.play(first, 7)
    files = [BytesIO(), BytesIO()]
    for each, file in zip((first, second), files, strict=True):
        torch.save(each.state_dict(), file)
    assert name in STATELESS or files[0].getvalue() != files[1].getvalue()
    files[0].seek(0)
    second.load_state_dict(torch.load(files[0], weights_only=True))
    for _ in range(12):
        view = world.view()
        chosen = first.act(view)
        assert torch.equal(second.act(view), chosen)
        world.step(chosen)


def test_schedules_may_differ_by_environment_and_go_by_family() -> None:
    plans = [[PlannedGermination(0, 2, 5)], [], [PlannedGermination(3, 1, 4), PlannedGermination(1, 0, 1)]]
    actions = Simulated(3, fits_all(3), DIGITS).play(Schedule(plans), 8)
    assert [planned(actions[:, environment]) for environment in range(3)] == [[(0, 2, 5)], [], [(1, 0, 1), (3, 1, 4)]]
    experiment = small_experiment()
    grown = []
    for family in ("intact", "starved_0"):
        schedule = controller(experiment, "schedule_per_family", families=[family] * 3)
        grown.append(planned(Simulated(3, fits_all(3), DIGITS).play(schedule, 5)[:, 0]))
    assert grown == [[(1, 0, 1)], []]
    with pytest.raises(ValueError, match="no plan for hosts of family starved_9; it was tuned on intact, starved_0"):
        controller(experiment, "schedule_per_family", families=["starved_9"] * 3)


def test_static_networks_are_what_the_learned_controller_kept_or_one_blueprint_everywhere() -> None:
    experiment = small_experiment()
    final = controller(experiment, "static_final", learned_kept=[[("r0c1", "norm")], [], [("r0c0", "conv_light")]])
    full = controller(experiment, "static_full")
    assert isinstance(final, Static)
    assert isinstance(full, Static)
    assert final.modules == [[(1, Blueprint.NORM)], [], [(0, Blueprint.CONV_LIGHT)]]
    assert full.modules == [[(slot, Blueprint.CONV_LIGHT) for slot in range(3)]] * 3


@pytest.mark.parametrize("name", [name for name in CONTROLLERS if needed_by(name)])
def test_a_controller_that_lacks_what_it_is_made_from_says_so(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* needs"):
        controller(small_experiment(), name, tuning=None, learned_kept=None)
    if name != "static_final":
        with pytest.raises(ValueError, match="the tuning is for slots r0c0, not for r0c0, r0c1, r0c2"):
            controller(small_experiment(), name, tuning=some_tuning(["r0c0"]))


def test_an_unknown_controller_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"controller: unknown 'lucky'.*heuristic.*never"):
        build("lucky", 1, 1)


# ------------------------------------------------------------------------------------------------------------- random


def test_random_covers_every_choice_of_every_head() -> None:
    simulated = Simulated(8, fits_all(3), DIGITS, worth=lambda noise: 3 * noise)
    actions = simulated.play(build("random", 8, 3), 150).flatten(0, 1)
    for head, size in zip(Head, head_sizes(3, NUM_BLUEPRINTS), strict=True):
        first = 1 if head is Head.BLUEPRINT else 0
        grown = actions[actions[:, Head.OP] == Op.GERMINATE] if head is Head.BLUEPRINT else actions
        assert set(grown[:, head].tolist()) == set(range(first, size)), head.name


def test_random_is_uniform_over_the_legal_ops() -> None:
    empty = Simulated(4000, fits_all(2), DIGITS)
    actions = build("random", 4000, 2).act(empty.view())
    counts = actions[:, Head.OP].bincount(minlength=NUM_OPS) / 4000
    assert counts[[OP_WAIT, OP_GERMINATE]].tolist() == pytest.approx([0.5, 0.5], abs=0.04)
    slots = actions[actions[:, Head.OP] == OP_GERMINATE, Head.SLOT].bincount(minlength=2).double()
    assert (slots / slots.sum()).tolist() == pytest.approx([0.5, 0.5], abs=0.05)


@pytest.mark.parametrize("name", ["random", "learned"])
def test_heads_that_do_not_matter_are_zero(name: str) -> None:
    simulated, each = Simulated(4, fits_all(3), DIGITS), build(name, 4, 3)
    for _ in range(40):
        view = simulated.view()
        actions = each.act(view)
        assert torch.equal(actions, canonical(actions, view.observation.masks.alpha))
        simulated.step(actions)


def test_another_seed_draws_otherwise() -> None:
    runs = [Simulated(4, fits_all(3), DIGITS).play(build("random", 4, 3, seed), 20) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


# -------------------------------------------------------------------------------------------------------------- never


def test_never_only_waits() -> None:
    assert (Simulated(3, fits_all(3), DIGITS).play(build("never", 3, 3), 10) == OP_WAIT).all()


# ----------------------------------------------------------------------------------------------------------- schedule


def test_the_schedule_germinates_as_planned_and_keeps_what_grew() -> None:
    """On time where that is legal, else as soon as it is; a second episode follows the plan again."""
    plan = [PlannedGermination(4, 2, 5), PlannedGermination(0, 0, 1), PlannedGermination(0, 1, 4)]
    rules = growth_rules(max_developing=1, max_seeds=3, min_training_epochs=1, min_cull_age=1, embargo_epochs=1)
    schedule = Schedule([plan] * 2)
    for _ in range(2):
        simulated = Simulated(2, fits_all(3), rules)
        actions = simulated.play(schedule, 20)
        for environment in range(2):
            grown = planned(actions[:, environment])
            # One at a time: the second waits until the first is no longer developing.
            assert [pair for _, *pair in grown] == [[0, 1], [1, 4], [2, 5]]
            assert grown[0][0] == 0
            assert 0 < grown[1][0] < grown[2][0]
            assert grown[2][0] >= 4
        assert (simulated.state.stage == Stage.FOSSILIZED).all()


def test_the_schedule_is_on_time_when_nothing_forbids_it() -> None:
    plan = [PlannedGermination(7, 1, 3), PlannedGermination(2, 0, 6)]
    actions = Simulated(1, fits_all(2), DIGITS).play(Schedule([plan]), 12)
    assert planned(actions[:, 0]) == [(2, 0, 6), (7, 1, 3)]


def planned(actions: Tensor) -> list[tuple[int, int, int]]:
    """(epoch, slot, blueprint) of each germination in ``int64 [T, 8]``."""
    return [
        (epoch, int(row[Head.SLOT]), int(row[Head.BLUEPRINT]))
        for epoch, row in enumerate(actions)
        if row[Head.OP] == OP_GERMINATE
    ]


# ------------------------------------------------------------------------------------------------------------ learned


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("env.num_epochs=5")


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_learned_controller_is_frozen_and_reproducible(experiment: Experiment, deterministic: bool) -> None:
    policy, normaliser = experiment.policy()
    give_opinions(policy)
    normaliser.merge(moments(torch.randn(50, policy.num_features)))
    before = [{name: value.clone() for name, value in part.state_dict().items()} for part in (policy, normaliser)]
    runs = []
    for _ in range(2):
        stream = torch.Generator().manual_seed(1)
        chooser = Learned(policy, normaliser, 3, generator=stream, deterministic=deterministic, greedy=Greedy.mode)
        results = play_episode(small_env(experiment), chooser)
        runs.append(torch.stack([result.observation.features for result in results]))
        assert all(result.applied.success.all() for result in results)
    assert torch.equal(*runs)
    for part, old in zip((policy, normaliser), before, strict=True):
        assert all(torch.equal(value, old[name]) for name, value in part.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_the_learned_controller_normalises_and_remembers() -> None:
    """Its decisions depend on the normaliser and on earlier observations."""
    policy, normaliser = new_policy(3)
    shifted = Normaliser(torch.ones(policy.num_features, dtype=torch.bool))
    shifted.merge(moments(5 * torch.randn(100, policy.num_features, generator=torch.Generator().manual_seed(0)) + 1))

    def actions(norm: Normaliser, forget: bool) -> Tensor:
        learned = Learned(policy, norm, 4, generator=torch.Generator(), greedy=Greedy.mode)
        simulated, taken = Simulated(4, fits_all(3), DIGITS), []
        for _ in range(20):
            taken.append(learned.act(simulated.view()))
            simulated.step(taken[-1])
            if forget:
                learned.reset(torch.ones(4, dtype=torch.bool))
        return torch.stack(taken)

    usual = actions(normaliser, forget=False)
    assert not torch.equal(usual, actions(shifted, forget=False))
    assert not torch.equal(usual, actions(normaliser, forget=True))


def test_rules_ramp_fast_and_all_the_way() -> None:
    actions = Simulated(1, fits_all(1), DIGITS).play(build("schedule", 1, 1), 1)[0, 0]
    assert actions[Head.TEMPO] == Tempo.FAST
    assert actions[Head.ALPHA_TARGET] == 2
