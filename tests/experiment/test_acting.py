"""A checkpoint alone suffices for a policy that decides, without data or host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import small_experiment

from esper import tasks
from esper.config import to_plain
from esper.experiment.acting import trained_policy
from esper.experiment.checkpoint import config_of, load_checkpoint, save_checkpoint
from esper.hosts import registry
from esper.policy.normaliser import moments


def test_a_policy_comes_from_its_checkpoint_without_data_or_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small_experiment()
    policy, normaliser = experiment.policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    normaliser.merge(moments(torch.randn(20, policy.num_features, generator=torch.Generator().manual_seed(0))))
    path = tmp_path / "last.pt"
    save_checkpoint(path, policy=policy, normaliser=normaliser, iteration=1, config=to_plain(experiment.config))
    for module, name in ((tasks, "load_task"), (registry, "build_host")):
        monkeypatch.delattr(module, name)
    record = load_checkpoint(path)
    before = torch.get_rng_state()
    for old, new in zip((policy, normaliser), trained_policy(record, config_of(record, path)), strict=True):
        assert all(torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before)
