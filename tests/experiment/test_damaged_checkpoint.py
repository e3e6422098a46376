"""Checkpoints with a missing or different part are refused in one line that names the file and the part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import SMALL, small_experiment
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS
from esper.config import UsageError, compose, to_yaml
from esper.config.errors import refused
from esper.config.evaluate import EvaluateConfig
from esper.config.root import CheckpointConfig, Config
from esper.evaluation.run import check
from esper.experiment.checkpoint import CheckpointError, load_checkpoint
from esper.growth.actions import BlendAlgorithm, Blueprint
from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder
from esper.runtime.state import damage, parts
from esper.telemetry.hub import TelemetryHub
from esper.training.start import find_start
from esper.training.trainer import Trainer, check_start
from tests.tiers import few

WORDS = ("trainer.num_steps=4", "instances.num_train=7", "env.num_epochs=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Make the folder of a run that was stopped in mid-episode, with growing modules."""
    experiment = small_experiment(*WORDS)
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", to_yaml(experiment.config))
    trainer = Trainer(experiment, folder, TelemetryHub([]))
    trainer.begin()
    metrics = trainer.iterate()
    for slot, algorithm in enumerate(BlendAlgorithm):
        if trainer.env.population.blueprint[0, slot] < 0:
            kind = int(Blueprint.CONV_LIGHT)
            trainer.env.population.germinate(0, slot, kind, algorithm, generator("module", slot))
    trainer.save(metrics)
    return folder


@pytest.fixture(scope="module")
def raw(folder: RunFolder) -> dict[str, Any]:
    """Read the content of the file."""
    found: dict[str, Any] = torch.load(folder.last_checkpoint, weights_only=True)
    return found


def without(state: Any, path: list[str | int], instead: object = None) -> Any:
    """Copy without one part, or with another in its place; everything else is shared."""
    [first, *rest] = path
    copy = dict(state) if isinstance(state, dict) else list(state)
    if rest:
        copy[first] = without(state[first], rest, instead)
    elif instead is not None:
        copy[first] = instead
    else:
        del copy[first]
    return copy


def paths(state: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[list[str | int], Any]]:
    """List every part with its keys."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    for key, value in items:
        yield [*path, key], value
        yield from paths(value, (*path, key))


def named(state: Any, path: list[str | int]) -> str:
    """Return the name of a part as :func:`parts` gives it."""
    name = ""
    for key in path:
        name += f"[{key}]" if isinstance(state, list | tuple) else f".{key}"
        state = state[key]
    return name.removeprefix(".")


def test_every_part_that_is_missing_or_something_else_is_found_and_named(raw: dict[str, Any]) -> None:
    record = {key: value for key, value in raw.items() if key != "parts"}
    assert parts(record) == raw["parts"]
    assert damage(raw["parts"], record) is None
    every = list(paths(record))
    assert len(every) == len(raw["parts"])
    for path, value in every[::9]:
        name = named(record, path)
        told = damage(raw["parts"], without(record, path)) or ""
        if name.endswith("]"):
            assert told.startswith(f"part '{name.rpartition('[')[0]}' is list of "), told
        else:
            assert told == f"part '{name}' is missing"
        for other in (object(), *([value[None], value.to(torch.complex64)] if isinstance(value, Tensor) else [])):
            told = damage(raw["parts"], without(record, path, other)) or ""
            assert told.startswith(f"part '{name}' is "), (name, told)


TOP = ["iteration", "num_slots", "policy", "normaliser", "config", "training", "parts", "version", "format"]
INNER = ["optimizer", "best", "stopwatch", "escalation", "positions", "ranks"]
OWN = ["env", "buffer", "recorder", "sampling", "shuffling", "twins", "carry", "num_threads"]
LEAVES = [["policy", "encoder.0.weight"], ["normaliser", "mean"], ["config", "seed"], ["config", "task", "name"]]
LEAVES += [["training", name] for name in INNER] + [["training", "ranks", 0, name] for name in OWN]
LEAVES += [["training", "ranks", 0, "env", "population", "hosts", "values"], ["training", "optimizer", "state", 3]]
DAMAGES = [([name], instead) for name in TOP for instead in (None, 1.5)] + [(path, None) for path in LEAVES]


@pytest.mark.parametrize(("path", "instead"), DAMAGES, ids=lambda value: str(value))
@few(10)
def test_resuming_evaluating_and_starting_from_it_are_refused_in_one_line(
    folder: RunFolder, raw: dict[str, Any], tmp_path: Path, path: list[str | int], instead: object
) -> None:
    own = RunFolder(tmp_path / "run")
    own.checkpoints.mkdir(parents=True)
    own.config.write_text(folder.config.read_text())
    torch.save(without(raw, path, instead), own.last_checkpoint)
    before = own.last_checkpoint.read_bytes()
    config = small_experiment(*WORDS).config

    def resume() -> None:
        find_start(own, replace(config, resume=str(own.path)))

    def evaluate() -> None:
        check(EvaluateConfig(checkpoint=str(own.path)))

    def begin_from() -> None:
        find_start(RunFolder(tmp_path / "new"), replace(config, checkpoint=CheckpointConfig(path=str(own.path))))

    for use in (resume, evaluate, begin_from):
        with pytest.raises(UsageError) as caught, refused(Config):
            use()
        said = str(caught.value)
        assert said.startswith(str(own.last_checkpoint))
        assert "\n" not in said
        if path[0] not in ("format", "version"):
            assert f"is damaged: part '{named(raw, path)}' is " in said
    assert own.last_checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, "has checkpoint version 2; this Esper reads 3: use the one that wrote it, or train"),
        (["version"], 4, "has checkpoint version 4; this Esper reads up to 3: update Esper"),
        (
            ["config", "ppo", "lr"],
            -1.0,
            "is of a configuration that cannot be used here: ppo.lr must be above 0, got -1.0",
        ),
        (["config", "bogus"], 1, "is of a configuration that cannot be used here: unknown key 'bogus'"),
    ],
)
def test_what_is_whole_but_not_of_this_esper_is_refused_with_the_file(
    folder: RunFolder, raw: dict[str, Any], tmp_path: Path, path: list[str | int], value: object, message: str
) -> None:
    file = tmp_path / "other.pt"
    torch.save(without(raw, path, value), file)
    with pytest.raises(CheckpointError) as caught:
        check(EvaluateConfig(checkpoint=str(file)))
    assert str(caught.value).startswith(f"{file} {message}")


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "last.pt").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        load_checkpoint(tmp_path / ("x" * 300))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"last.pt cannot be read \(Permission denied\)"):
        load_checkpoint(tmp_path / "last.pt")


def test_a_module_that_has_another_shape_now_is_refused_before_the_folder_changes(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small_experiment(*WORDS)
    start = find_start(folder, replace(experiment.config, resume=str(folder.path)))
    check_start(experiment, folder, start)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    monkeypatch.setitem(
        BLUEPRINTS["cnn"]._entries, "conv_light", lambda channels: nn.Sequential(nn.Conv2d(channels, channels, 1))
    )
    with pytest.raises(CheckpointError, match=r"last.pt cannot be used here: ValueError: rows of \[600\] parameters"):
        check_start(experiment, folder, start)
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_policy_of_another_shape_is_refused_before_a_run_has_a_folder(folder: RunFolder) -> None:
    """As after a plugin has registered more blueprints than before."""
    config = replace(compose(*SMALL, *WORDS), checkpoint=CheckpointConfig(path=str(folder.path), partial=True))
    start = find_start(RunFolder(folder.path / "new"), config)
    assert start.source is not None
    start.source["policy"]["embedding.weight"] = torch.zeros(15, 4)
    experiment = replace(small_experiment(*WORDS), config=config)
    with pytest.raises(CheckpointError, match=r": the checkpoint's embedding.weight has shape \[15, 4\]"):
        check_start(experiment, folder, start)
