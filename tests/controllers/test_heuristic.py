"""The heuristic: grows on a plateau, everywhere in turn, keeps what helps, and never turns into never-grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import play_episode, small_env, small_experiment
from schema_defaults import growth_rules
from simulated import Simulated, fits_all
from torch import Tensor

from esper.controllers import Heuristic, HeuristicParameters
from esper.growth import Stage
from esper.growth.actions import OP_CULL, OP_FOSSILIZE, OP_GERMINATE, Head, Op
from tests.tiers import few

DIGITS = growth_rules(max_developing=3, max_seeds=2, min_training_epochs=2, min_cull_age=2, embargo_epochs=1)


def grown(actions: Tensor, head: Head, environment: int = 0) -> list[int]:
    """Values of a head over an environment's germinations, in order."""
    rows = actions[:, environment]
    return rows[rows[:, Head.OP] == OP_GERMINATE][:, head].tolist()


@pytest.mark.parametrize("num_slots", [1, 3, 5])
@few(1)
def test_it_serves_every_slot_in_turn_while_nothing_helps(num_slots: int) -> None:
    """With useless modules on a host that learns nothing, it keeps trying the least used slot until the end."""
    simulated = Simulated(2, fits_all(num_slots), DIGITS, worth=lambda noise: -torch.ones_like(noise), sick=0.0)
    actions = simulated.play(Heuristic([HeuristicParameters()] * 2, num_slots, 2), 120)
    slots = grown(actions, Head.SLOT)
    counts = [slots.count(slot) for slot in range(num_slots)]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert slots[:num_slots] == list(range(num_slots)), "ties go by canonical order"
    last = (actions[:, 0, Head.OP] == OP_GERMINATE).nonzero().max()
    assert last >= 100, "it has not given up"
    assert not (actions[..., Head.OP] == OP_FOSSILIZE).any()
    assert torch.equal(actions[:, 0], actions[:, 1]), "equal environments are treated alike"


def test_it_rotates_all_blueprints_that_fit_the_slot() -> None:
    compatible = torch.zeros(2, 13, dtype=torch.bool)
    compatible[0, [1, 3, 7]] = compatible[1, [1, 3, 7]] = True
    simulated = Simulated(1, compatible, DIGITS, worth=lambda noise: -noise.abs())
    blueprints = grown(simulated.play(Heuristic([HeuristicParameters()], 2, 2), 120), Head.BLUEPRINT)
    assert blueprints[:6] == [1, 3, 7, 1, 3, 7]


@pytest.mark.parametrize("max_developing", [1, 2, 4])
def test_all_slots_grow_side_by_side_as_far_as_the_masks_allow(max_developing: int) -> None:
    """One germination an epoch, in canonical order, while others still develop; no action when all slots are full."""
    rules = replace(DIGITS, max_developing=max_developing, max_seeds=4, min_training_epochs=6)
    simulated = Simulated(1, fits_all(4), rules, sick=0.0)
    actions = simulated.play(Heuristic([HeuristicParameters()], 4, 4), 8)
    born = (actions[:, 0, Head.OP] == OP_GERMINATE).nonzero().flatten()
    assert grown(actions, Head.SLOT) == list(range(max_developing))
    assert (born.diff() == 1).all()
    assert simulated.state.developing.sum() == max_developing


def test_it_keeps_what_helps_until_the_places_are_taken() -> None:
    """Modules that are still developing then are culled, since no place will become free, and nothing germinates any
    more.
    """
    simulated = Simulated(1, fits_all(3), DIGITS, worth=lambda noise: 1.0 + noise.abs())
    actions = simulated.play(Heuristic([HeuristicParameters()], 3, 2), 60)
    assert (simulated.state.stage == Stage.FOSSILIZED).sum() == DIGITS.max_seeds
    op = actions[:, 0, Head.OP]
    last_kept = int((op == OP_FOSSILIZE).nonzero().max())
    assert (op == OP_FOSSILIZE).sum() == DIGITS.max_seeds
    assert (op[last_kept + 1 :] == OP_GERMINATE).sum() == 0
    assert not simulated.state.developing.any()


@pytest.mark.parametrize(("worth", "op"), [(0.6, Op.FOSSILIZE), (0.5, Op.CULL), (-2.0, Op.CULL)])
def test_it_decides_by_the_measured_contribution_as_soon_as_it_may(worth: float, op: Op) -> None:
    simulated = Simulated(1, fits_all(1), DIGITS, worth=lambda noise: torch.full_like(noise, worth))
    heuristic = Heuristic([HeuristicParameters(keep_points=0.5)], 1, 2)
    for _ in range(40):
        holding = bool(simulated.state.stage[0, 0] == Stage.HOLDING)
        actions = heuristic.act(simulated.view())
        if holding:
            assert actions[0, Head.OP] == op
            return
        simulated.step(actions)
    raise AssertionError("nothing ever reached HOLDING")


def test_it_gives_up_modules_that_cannot_blend() -> None:
    """Their gradients always vanish, so no gate passes: they must be culled for growth to continue."""
    simulated = Simulated(1, fits_all(3), DIGITS, sick=1.0)
    actions = simulated.play(Heuristic([HeuristicParameters()], 3, 2), 60)
    assert set(grown(actions, Head.SLOT)) == {0, 1, 2}
    assert int((actions[:, 0, Head.OP] == OP_CULL).sum()) >= len(grown(actions, Head.SLOT)) - DIGITS.max_developing


def test_it_lets_a_host_alone_that_learns_well() -> None:
    simulated = Simulated(2, fits_all(3), DIGITS, loss=lambda epoch: 2.0 * 0.7**epoch)
    assert not grown(simulated.play(Heuristic([HeuristicParameters()] * 2, 3, 2), 25), Head.SLOT)


def test_it_grows_when_a_host_stops_learning() -> None:
    """The loss falls fast for ten epochs and then no more: with patience 2 it acts two epochs later."""
    simulated = Simulated(1, fits_all(3), DIGITS, loss=lambda epoch: 2.0 * 0.7 ** min(epoch, 10))
    actions = simulated.play(Heuristic([HeuristicParameters()], 3, 2), 25)
    first = int((actions[:, 0, Head.OP] == OP_GERMINATE).nonzero()[0])
    assert 10 < first <= 12


def test_it_grows_real_hosts() -> None:
    """Every environment gets at least one module in an ordinary episode."""
    env = small_env(small_experiment())
    results = play_episode(env, Heuristic([HeuristicParameters()] * 3, 3, 3))
    grew = torch.stack([result.applied.germinated.any(dim=1) for result in results]).any(dim=0)
    assert grew.all()
