"""Shipped controllers are small, say where they come from, and decide as the run that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import small_env, small_experiment

from esper.config import to_plain
from esper.experiment.acting import trained_policy
from esper.experiment.checkpoint import config_of, load_checkpoint, save_checkpoint
from esper.experiment.shipped import controller_path, load_controller, ship, shipped_controllers

MOST_BYTES = 1_000_000


def test_a_policy_is_shipped_as_it_was_trained_without_its_training_state(tmp_path: Path) -> None:
    experiment = small_experiment()
    policy, normaliser = experiment.policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    path = tmp_path / "last.pt"
    config = to_plain(experiment.config)
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=7, config=config, training={"position": 3})
    shipped = ship(path, "mine", {"seed": 1}, tmp_path)
    record = load_checkpoint(shipped)
    assert "training" not in record
    assert record["origin"] == {"iteration": 7, "seed": 1} == json.loads(shipped.with_suffix(".json").read_text())
    for old, new in zip((policy, normaliser), trained_policy(record, config_of(record, shipped)), strict=True):
        assert all(torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items())


def test_heads_with_a_single_choice_take_no_room_and_what_is_shipped_acts_as_before(tmp_path: Path) -> None:
    experiment = small_experiment("recipe=lean")
    policy, normaliser = experiment.policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    path, config = tmp_path / "last.pt", to_plain(experiment.config)
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=config)
    shipped = ship(path, "mine", {}, tmp_path)
    assert shipped.stat().st_size < 0.9 * path.stat().st_size
    env = small_env(experiment)
    observation = env.reset()
    before, after = (load_controller(source, env.num_envs) for source in (path, shipped))
    for _ in range(6):
        view = env.view(observation)
        actions = before.act(view)
        assert torch.equal(actions, after.act(view))
        observation = env.step(actions).observation


@pytest.mark.parametrize("name", shipped_controllers())
def test_a_shipped_controller_is_small_and_says_where_it_comes_from(name: str) -> None:
    path = shipped_controllers()[name]
    assert path.stat().st_size < MOST_BYTES
    record = load_checkpoint(path)
    trained_policy(record, config_of(record, path))
    origin = record["origin"]
    assert origin == json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert {"command", "commit", "seed", "date", "iteration", "evaluation"} <= set(origin)
    assert f"`{name}`" in (path.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", shipped_controllers())
def test_a_checkpoint_or_run_at_a_path_comes_before_a_shipped_controller_of_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert controller_path(name) == shipped_controllers()[name]
    Path(name).mkdir()
    assert controller_path(name) == shipped_controllers()[name], "a folder without a run is none"
    last = Path(name, "checkpoints", "last.pt")
    last.parent.mkdir()
    last.touch()
    assert controller_path(name) == last
    assert controller_path(f"{name}s") == Path(f"{name}s")
