"""Checkpoints: their content, atomic writing, and clear refusals."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from helpers import small_experiment

from esper.experiment.build import Experiment
from esper.experiment.checkpoint import (
    FORMAT,
    VERSION,
    CheckpointError,
    load_checkpoint,
    restore_policy,
    save_checkpoint,
)
from esper.policy import GrowthPolicy, Normaliser
from esper.policy.normaliser import moments


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment()


def trained(experiment: Experiment) -> tuple[GrowthPolicy, Normaliser, torch.optim.Adam]:
    """Make a policy, a normaliser and an optimizer with non-initial states."""
    policy, normaliser = experiment.policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    normaliser.merge(moments(torch.randn(20, policy.num_features, generator=torch.Generator().manual_seed(0))))
    return policy, normaliser, optimizer


def save(path: Path, experiment: Experiment, **changes: Any) -> tuple[GrowthPolicy, Normaliser, torch.optim.Adam]:
    policy, normaliser, optimizer = trained(experiment)
    parts: dict[str, Any] = {"policy": policy, "normaliser": normaliser}
    parts["training"] = {"optimizer": optimizer.state_dict()}
    save_checkpoint(path, **(parts | {"iteration": 7, "config": {"seed": 3, "ppo": {"lr": 0.1}}} | changes))
    return policy, normaliser, optimizer


def test_what_is_saved_is_restored_bit_by_bit(tmp_path: Path, experiment: Experiment) -> None:
    path = tmp_path / "last.pt"
    policy, normaliser, optimizer = save(path, experiment)
    record = load_checkpoint(path)
    assert (record["iteration"], record["num_slots"], record["version"]) == (7, 3, VERSION)
    assert record["config"] == {"seed": 3, "ppo": {"lr": 0.1}}
    fresh, blank = experiment.policy()
    restore_policy(record, fresh, blank)
    for old, new in ((policy, fresh), (normaliser, blank)):
        assert all(torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items())
    resumed = torch.optim.Adam(fresh.parameters(), lr=9.0)
    resumed.load_state_dict(record["training"]["optimizer"])
    for one, other in zip(policy.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(optimizer.state[one]["exp_avg"], resumed.state[other]["exp_avg"])


def test_only_tensors_and_plain_types_are_inside(tmp_path: Path, experiment: Experiment) -> None:
    path = tmp_path / "last.pt"
    save(path, experiment)
    assert torch.load(path, weights_only=True)["format"] == FORMAT


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save(path, experiment)
    before = path.read_bytes()

    def half(record: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="disk full"):
        save(path, experiment)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def truncated(path: Path, experiment: Experiment) -> None:
    save(path, experiment)
    path.write_bytes(path.read_bytes()[:1000])


def empty(path: Path, experiment: Experiment) -> None:
    path.write_bytes(b"")


def text(path: Path, experiment: Experiment) -> None:
    path.write_text("not a checkpoint")


def other_program(path: Path, experiment: Experiment) -> None:
    torch.save({"model": torch.zeros(3)}, path)


def bare_tensor(path: Path, experiment: Experiment) -> None:
    torch.save(torch.zeros(3), path)


def code(path: Path, experiment: Experiment) -> None:
    torch.save({"format": FORMAT, "version": VERSION, "policy": torch.nn.Linear(1, 1)}, path)


def newer(path: Path, experiment: Experiment) -> None:
    torch.save({"format": FORMAT, "version": VERSION + 1}, path)


def nothing(path: Path, experiment: Experiment) -> None: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (truncated, "is truncated or not a checkpoint"),
        (empty, "is truncated or not a checkpoint"),
        (text, "is truncated or not a checkpoint"),
        (code, "is truncated or not a checkpoint"),
        (other_program, "is not an Esper checkpoint"),
        (bare_tensor, "is not an Esper checkpoint"),
        (newer, f"has checkpoint version {VERSION + 1}; this Esper reads up to {VERSION}: update Esper"),
        (nothing, "no checkpoint at"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, experiment: Experiment, make: Any, message: str) -> None:
    path = tmp_path / "strange.pt"
    make(path, experiment)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path)
    assert "strange.pt" in str(caught.value)


def test_of_a_foreign_pickle_nothing_is_said_but_the_refusal(tmp_path: Path) -> None:
    path = tmp_path / "strange.pt"
    path.write_bytes(pickle.dumps(print))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            load_checkpoint(path)
    assert not warned


@pytest.mark.parametrize("override", ["policy.lstm_dim=8", "observation.slot_probes=[]"])
def test_other_widths_or_features_are_refused_before_anything_is_loaded(
    tmp_path: Path, experiment: Experiment, override: str
) -> None:
    path = tmp_path / "last.pt"
    save(path, experiment)
    policy, normaliser = small_experiment(override).policy()
    before = [value.clone() for value in policy.state_dict().values()]
    with pytest.raises(CheckpointError, match=r"has shape \[.*policy\.\* and observation\.\*"):
        restore_policy(load_checkpoint(path), policy, normaliser)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.state_dict().values(), strict=True))


def test_another_number_of_slots_is_refused_with_both_and_what_to_do(tmp_path: Path, experiment: Experiment) -> None:
    path = tmp_path / "last.pt"
    save(path, experiment)
    other = small_experiment("slots.num_slots=2")
    policy, normaliser = other.policy()
    before = [value.clone() for value in policy.state_dict().values()]
    with pytest.raises(CheckpointError, match=r"has 3 slots, this configuration 2: set slots.num_slots=3 or train"):
        restore_policy(load_checkpoint(path), policy, normaliser)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.state_dict().values(), strict=True))


@pytest.mark.parametrize("part", ["policy", "normaliser"])
def test_numbers_that_are_not_finite_are_refused_by_part_and_name(
    tmp_path: Path, experiment: Experiment, part: str
) -> None:
    """A run, an evaluation and a sweep all read checkpoints here: none starts from a policy that decides nothing."""
    policy, normaliser, _ = trained(experiment)
    modules: dict[str, torch.nn.Module] = {"policy": policy, "normaliser": normaliser}
    name, tensor = next((name, value) for name, value in modules[part].state_dict().items() if value.dim())
    tensor.view(-1)[1:3] = torch.nan
    path = tmp_path / "last.pt"
    save(path, experiment, **{part: modules[part]})
    with pytest.raises(
        CheckpointError, match=rf"last.pt: 2 of {tensor.numel()} numbers of its {part}'s {name} are not"
    ):
        load_checkpoint(path)
