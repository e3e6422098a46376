"""The supervised bandit as a controller: it grows the plan of highest predicted return at each host's own price."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import play_episode, small_env, small_experiment, undone

from esper.blueprints import blueprint_ids
from esper.envs.growth import GrowthEnv

with undone():  # tests of the registry are about Esper's own
    from experiments.digits_mixed import bandit

pytestmark = pytest.mark.slow

NAMES = ["conv_small", "conv_light"]
WORDS = ("reward.rent_weights=[0.5,40]", "observation.price=true", "slots.max_seeds=3", "env.num_epochs=16")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> bandit.Learned:
    """A bandit to which every module was worth 10 points, on hosts that are four times smaller
    where the first probe is above 0; light modules are twice as large as small ones.
    """
    draw = np.random.default_rng(0)
    plans, probes = draw.integers(-1, 2, (300, 3)), draw.normal(size=(300, 12))
    path = tmp_path_factory.mktemp("bandit") / "bandit.npz"
    np.savez(
        path,
        names=np.array(NAMES),
        shares=np.array([[1.0, 2.0]] * 3),
        smaller=np.where(probes[:, 0] > 0, 4.0, 1.0) * (plans >= 0).any(1),
        hosts=np.arange(300),
        probes=probes.reshape(300, 3, 4),
        plans=plans,
        gains=10.0 * (plans >= 0).sum(1),
    )
    return bandit.learned(path)


def env_of(*words: str) -> GrowthEnv:
    return small_env(small_experiment(*WORDS, *words), num_envs=4)


def test_it_keeps_cheap_modules_everywhere_where_they_pay_and_none_where_they_do_not(learned: bandit.Learned) -> None:
    env = env_of()
    controller = bandit.BanditController(4, 3, learned)
    *_, last = play_episode(env, controller)
    kept = {episode.instance.rent_weight: episode.kept for episode in last.episodes}
    assert kept == {0.5: tuple((slot_id, "conv_small") for slot_id in env.slot_ids), 40.0: ()}


def test_it_goes_on_from_its_state(learned: bandit.Learned) -> None:
    env = env_of()
    one, other = (bandit.BanditController(4, 3, learned) for _ in range(2))
    observation = env.reset()
    for _ in range(2):
        observation = env.step(one.act(env.view(observation))).observation
    other.load_state_dict(one.state_dict())
    wanted = one.act(env.view(observation))
    assert torch.equal(other.act(env.view(observation)), wanted)
    assert wanted.any(), "it still has something to germinate"


def test_a_host_of_fewer_parameters_pays_more_for_the_same_modules(learned: bandit.Learned) -> None:
    probes, small = np.zeros((2, 3, 4)), blueprint_ids().index("conv_small")
    probes[:, 0, 0] = -1.0, 1.0
    assert learned.choose(probes, np.array([5.0, 5.0])).tolist() == [[small] * 3, [bandit.NOTHING] * 3]


def test_it_says_what_it_lacks(learned: bandit.Learned, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no .*other.npz, from which 'bandit' learns: run python -m experiments"):
        bandit.learned(tmp_path / "other.npz")
    env = small_env(small_experiment())
    with pytest.raises(ValueError, match=r"^'bandit' reads observation.slot_probes=\[dead_channels,.* and observation"):
        bandit.BanditController(3, 3, learned).act(env.view(env.reset()))


@pytest.mark.parametrize(("price", "num_kept"), [(-1e9, 3), (1e9, 0)])
def test_in_the_end_it_culls_what_contributes_less_than_it_costs(
    learned: bandit.Learned, price: float, num_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandit, "JUDGED_AT", 8)
    monkeypatch.setattr(bandit.CullingBandit, "_price", lambda *arguments: price)
    *_, last = play_episode(env_of("reward.rent_weights=[0.5]"), bandit.CullingBandit(4, 3, learned))
    assert [(episode.num_germinated, len(episode.kept)) for episode in last.episodes] == [(3, num_kept)] * 4


def test_a_module_costs_its_share_of_the_host(learned: bandit.Learned) -> None:
    small, light = (learned.share(1, blueprint_ids().index(name)) for name in NAMES)
    assert (small, light) == (1.0, 2.0)
    assert learned.units(np.full((1, 3, 4), -1.0), np.array([5.0])) == pytest.approx([5.0], rel=0.1)
