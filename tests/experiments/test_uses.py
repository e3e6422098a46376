"""The study of what a controller uses takes away one thing at a time, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import controller, small_env, small_experiment, undone

from esper.envs.features import feature_table
from esper.envs.growth import GrowthEnv
from esper.population import PROBE_NAMES

with undone():  # tests of the registry are about Esper's own
    from experiments.uses.ablations import ABLATIONS, GROUPS, Ablated, FrozenProbes, _columns
    from experiments.uses.reproduce import TEXTS, playable, rows

NUM_ENVS = 5
EXPERIMENT = small_experiment(f"observation.slot_probes=[{','.join(PROBE_NAMES)}]")


def ablated(name: str) -> Ablated:
    with undone():
        from esper.controllers import register_controller

        register_controller(name, ABLATIONS[name])
        built = controller(EXPERIMENT, name, NUM_ENVS)
    assert isinstance(built, Ablated)
    return built


@pytest.fixture
def env() -> GrowthEnv:
    env = small_env(EXPERIMENT, num_envs=NUM_ENVS)
    env.reset()
    return env


def test_every_feature_is_in_one_group_and_every_probe_in_one_of_its_own() -> None:
    names = {feature.name.rpartition(".")[2] for feature in feature_table(3, PROBE_NAMES)}
    large = [group for group in GROUPS if group not in PROBE_NAMES]
    assert {name: sum(GROUPS[group](name) for group in large) for name in names} == dict.fromkeys(names, 1)
    assert set(large) | set(PROBE_NAMES) == set(GROUPS)
    assert set(TEXTS) == {"learned", *ABLATIONS, "never"}


@pytest.mark.parametrize("group", GROUPS)
def test_swapped_features_are_those_of_one_other_host_and_all_others_stay(group: str, env: GrowthEnv) -> None:
    view = env.view(env.observation())
    features = torch.rand_like(view.observation.features)
    read = ablated(f"swapped_{group}").read(view, features.clone())
    columns = torch.zeros(features.shape[1], dtype=torch.bool)
    columns[_columns(view, group)] = True
    assert torch.equal(read[:, ~columns], features[:, ~columns])
    sources = [(features[:, columns] == row).all(1).nonzero().item() for row in read[:, columns]]
    assert sorted(sources) == list(range(NUM_ENVS))
    assert all(source != host for host, source in enumerate(sources))
    again = ablated(f"swapped_{group}").read(view, features.clone())
    assert torch.equal(again, read)


def test_frozen_probes_are_those_of_the_reset_and_survive_a_save(env: GrowthEnv) -> None:
    view = env.view(env.observation())
    columns = _columns(view, "probes")
    first, second, third = (torch.rand_like(view.observation.features) for _ in range(3))
    frozen, later = ablated(FrozenProbes.name), ablated(FrozenProbes.name)
    assert torch.equal(frozen.read(view, first.clone()), first)
    later.load_state_dict(frozen.state_dict())
    for each in (frozen, later):
        read = each.read(view, second.clone())
        assert torch.equal(read[:, columns], first[:, columns])
        each.reset(torch.arange(NUM_ENVS) == 2)
        read = each.read(view, third.clone())
        expected = first[:, columns].index_copy(0, torch.tensor([2]), third[2:3, columns])
        assert torch.equal(read[:, columns], expected)


def test_a_controller_without_memory_acts_alike_whatever_came_before(env: GrowthEnv) -> None:
    view = env.view(env.observation())
    forgetful, learned = ablated("learned_forgetful"), controller(EXPERIMENT, "learned", NUM_ENVS)
    assert torch.equal(forgetful.act(view), learned.act(view))
    before = forgetful.state_dict()["hidden"]
    forgetful.act(
        replace(view, observation=replace(view.observation, features=torch.rand_like(view.observation.features)))
    )
    forgetful.act(view)
    assert all(torch.equal(*pair) for pair in zip(before, forgetful.state_dict()["hidden"], strict=True))


def test_a_group_that_nobody_observes_is_refused() -> None:
    bare = small_env(small_experiment("observation.slot_probes=[]"), num_envs=NUM_ENVS)
    view = bare.view(bare.reset())
    with pytest.raises(ValueError, match="no feature of the group probes"):
        ablated("swapped_probes").act(view)


def test_rows_stand_in_the_order_of_their_texts() -> None:
    value = {"estimate": 1.0, "low": 0.5, "high": 1.5}
    result = {
        "controllers": [
            {
                "name": name,
                "episode_return": value,
                "return_difference": value,
                "test_accuracy": value,
                "num_fossilized": 1,
            }
            for name in ("never", "swapped_epoch", "learned")
        ]
    }
    learned, swapped, never = rows(result)
    assert learned == "| everything, as trained | +1.0 [+0.5, +1.5] |  | 100.0 [50.0, 150.0] | 1.00 |"
    assert swapped.startswith("| epoch of another host | +1.0 [+0.5, +1.5] | +1.0 [+0.5, +1.5] |")
    assert never.startswith("| (never grows) ")


def test_only_what_is_observed_is_taken_away() -> None:
    assert playable(PROBE_NAMES) == list(ABLATIONS)
    assert set(ABLATIONS) - set(playable(["dead_channels"])) == {f"swapped_{name}" for name in PROBE_NAMES[1:]}
    assert not any("probes" in name or name.removeprefix("swapped_") in PROBE_NAMES for name in playable([]))
