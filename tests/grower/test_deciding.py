"""A trained controller decides as in training, whatever users have registered since."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import undone
from nets import grower, net, train_epoch

from esper.blueprints import register_blueprint
from esper.blueprints.residual import Residual, conv_norm
from esper.config import to_plain
from esper.config.growth import SlotsConfig
from esper.config.root import Config
from esper.experiment.acting import build_policy
from esper.experiment.checkpoint import save_checkpoint
from esper.growth.actions import FactoredAction


def conv_wide(channels: int) -> Residual:
    return Residual(channels, torch.nn.Sequential(*conv_norm(channels, channels, kernel_size=5)))


def decisions(**options: object) -> list[FactoredAction | None]:
    """Let the shipped controller grow a small network; return what it decided."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    growing = grower(model, optimizer, "digits_pays", rules=None, num_epochs=8, **options)
    first = growing.view().last_action
    return [first, *(train_epoch(model, optimizer, None, epoch, growing).action for epoch in range(8))]


def test_a_trained_controller_decides_the_same_beside_a_users_blueprint() -> None:
    alone = decisions()
    assert any(action is not None and action.op == "GERMINATE" for action in alone)
    with undone():
        register_blueprint("cnn", "conv_wide", conv_wide)
        assert decisions() == alone
        with pytest.raises(ValueError, match=r"blueprints: digits_pays was trained without 'conv_wide'; .*noop"):
            decisions(blueprints=["conv_light", "conv_wide"])


def test_a_controller_trained_with_a_users_blueprint_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    config = Config(slots=SlotsConfig(num_slots=2))
    with undone():
        register_blueprint("cnn", "conv_wide", conv_wide)
        policy, normaliser = build_policy(config, 2)
        save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=to_plain(config))
    model = net()
    with pytest.raises(
        ValueError, match=r"controller: it was trained with 14 blueprints, and 13 are registered .*noop.*: import"
    ):
        grower(model, torch.optim.SGD(model.parameters(), lr=0.1), path, rules=None)


def test_a_controller_of_a_version_with_fewer_blueprints_is_refused_with_what_can_be_done(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    config = Config(slots=SlotsConfig(num_slots=2))
    policy, normaliser = build_policy(config, 2, num_blueprints=12)
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=to_plain(config))
    model = net()
    with pytest.raises(
        ValueError,
        match=r"controller: it was trained with 12 blueprints, and this Esper has 13 of its own: use the Esper",
    ):
        grower(model, torch.optim.SGD(model.parameters(), lr=0.1), path, rules=None)
