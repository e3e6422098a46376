"""Growth as an environment of torchrl: the same hosts, rewards and masks as through gymnasium."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import NUM_ENVS, NUM_EPOCHS, OVERRIDES, vector_env

pytestmark = pytest.mark.slow  # torchrl takes seconds to import

NUM_STEPS = 2 * NUM_EPOCHS


@pytest.fixture(scope="module")
def env() -> Any:
    from torchrl.envs import ActionMask, TransformedEnv

    from esper.rl import GrowthTorchEnv

    return TransformedEnv(GrowthTorchEnv(NUM_ENVS, preset="smoke", overrides=OVERRIDES), ActionMask())


def test_torchrls_check_passes(env: Any) -> None:
    from torchrl.envs.utils import check_env_specs

    check_env_specs(env, break_when_any_done="both")


def test_random_legal_episodes_are_those_of_the_vector_environment(env: Any) -> None:
    env.set_seed(3)
    torch.manual_seed(0)
    played = env.rollout(NUM_STEPS, break_when_any_done=False)
    assert played.batch_size == (NUM_ENVS, NUM_STEPS)
    assert not played["next", "illegal"].any()
    assert played["action"].unique().numel() > 3

    plain = vector_env(observations="dict")
    observation, _ = plain.reset(seed=3)
    for step in range(NUM_STEPS):
        row = played[:, step]
        for name, values in observation.items():
            assert np.array_equal(row[name].numpy(), values), name
        observation, reward, ended, _, infos = plain.step(row["action"].numpy())
        assert np.allclose(row["next", "reward"][:, 0].numpy(), reward)
        assert np.array_equal(row["next", "done"][:, 0].numpy(), ended)
        following = infos["final_obs"] if ended.all() else None
        for number in range(NUM_ENVS):
            expected = observation["features"][number] if following is None else following[number]["features"]
            assert np.array_equal(row["next", "features"][number].numpy(), expected), "last of its episode"


def test_a_seed_gives_the_same_hosts_again_and_none_the_next_ones(env: Any) -> None:
    env.set_seed(5)
    first, following = env.reset()["features"], env.reset()["features"]
    env.set_seed(5)
    assert torch.equal(env.reset()["features"], first)
    assert not torch.equal(following, first)


def test_hosts_in_the_middle_of_an_episode_cannot_be_reset_alone(env: Any) -> None:
    begun = env.reset()
    begun["_reset"] = torch.tensor([[True], [False], [False]])
    with pytest.raises(ValueError, match="whose episode has not ended cannot be reset alone"):
        env.reset(begun)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torchrl's own
def test_a_collector_goes_from_one_episode_to_the_next(env: Any) -> None:
    from torchrl.collectors import Collector

    collector = Collector(
        env, env.rand_action, frames_per_batch=NUM_ENVS * NUM_STEPS, total_frames=NUM_ENVS * NUM_STEPS
    )
    [batch] = list(collector)
    collector.shutdown()
    assert batch["next", "done"].sum() == NUM_ENVS * 2
    assert not batch["next", "illegal"].any()


def test_what_torchrl_has_in_one_form_only_is_no_choice() -> None:
    from esper.rl import GrowthTorchEnv

    with pytest.raises(ValueError, match="actions='factored': torchrl has flat actions"):
        GrowthTorchEnv(NUM_ENVS, preset="smoke", actions="factored")
