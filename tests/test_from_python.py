"""Esper from Python: its names arrive lazily, and a run is checked, done and read as from the command line."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import SMALL
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from processes import run

import esper
from esper.config import UsageError
from esper.config.evaluate import EvaluateConfig
from esper.experiment.checkpoint import CheckpointError
from esper.launch.directly import unused
from esper.launch.entries import Entry
from esper.runtime.run_folder import RunFolder

QUIET = (*SMALL, "evaluation.controllers=[learned]", "telemetry.console=off", "telemetry.plots=false")


def test_names_arrive_lazily_and_hide_no_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(esper.__path__)}
    assert not modules & set(esper.__all__)
    assert set(esper._HOMES) == set(esper.__all__)
    assert all(getattr(esper, name).__name__ == name for name in esper.__all__)
    run([sys.executable, "-c", "import esper, sys; assert 'torch' not in sys.modules"], check=True)


def test_completion_offers_the_public_names_without_importing_them() -> None:
    seen = "import esper, sys; assert dir(esper) == sorted([*esper.__all__, '__version__']), dir(esper)"
    run([sys.executable, "-c", f"{seen}; assert 'torch' not in sys.modules"], check=True)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        folder = unused(tmp_path / "run")
        folder.mkdir()
        names.append(folder.name)
    assert names == ["run", "run-2", "run-3"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("+preset=smoke", r"got '\+preset=smoke': .*\(esper\.compose\('\+preset=smoke'\)\)"),
        (None, "got None: .*esper.compose"),
        ({"seed": 1}, "got a dict: .*esper.compose"),
        (EvaluateConfig(checkpoint="run"), "got a EvaluateConfig: .*esper.compose"),
        (esper.Config, "got the class Config: .*esper.compose"),
    ],
)
def test_what_is_no_configuration_is_refused_by_every_function_that_takes_one(given: Any, told: str) -> None:
    takers: list[Callable[..., object]] = [
        getattr(esper, name) for name in esper.__all__ if "config" in inspect.signature(getattr(esper, name)).parameters
    ]
    assert {esper.run_training, esper.build_env} <= set(takers)
    for taker in takers:
        with pytest.raises(UsageError, match=rf"^esper\.{taker.__name__} takes a configuration, {told}[^\n]*$"):
            taker(given)


def test_what_is_no_path_or_word_is_refused(tmp_path: Path) -> None:
    for given in (esper.compose(), RunFolder(tmp_path), [None], None):
        with pytest.raises(UsageError, match=r"^checkpoint must be a path .*esper\.compose[^\n]*$"):
            esper.run_evaluation(given)  # type: ignore[arg-type]
    for word in (["+preset=smoke"], None):
        with pytest.raises(UsageError, match=r"^esper\.compose takes words such as '\+preset=smoke', got "):
            esper.compose(word)  # type: ignore[arg-type]


def test_a_run_hears_the_absolute_path_of_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    heard: list[Path] = []
    monkeypatch.setattr(Entry, "work", lambda entry: lambda config, run_dir, ranks: heard.append(run_dir))
    for given in ("outputs/rs", tmp_path / "outputs" / "rs"):
        esper.run_training(esper.compose(*QUIET), given)
    assert heard == [tmp_path / "outputs" / "rs"] * 2


@pytest.mark.slow
def test_a_run_is_trained_and_its_controller_acts_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = esper.compose(*QUIET, "evaluation.num_hosts=3", "evaluation.greedy=hazard")
    trained = esper.run_training(config)
    assert trained.path.resolve() == tmp_path / "outputs" / config.name
    env = esper.build_env(config, "held_out")
    controller = esper.load_controller(trained.path, env.num_envs)
    assert "hazard" in controller.state_dict(), "it acts by the rule of its run"
    observation, episodes = env.reset(), []
    while not episodes:
        result = env.step(controller.act(env.view(observation)))
        observation, episodes = result.observation, result.episodes
    own = json.loads(trained.result.read_text())["episodes"]["learned"]
    assert [episode.episode_return for episode in episodes] == [record["return"] for record in own]
    evaluated = esper.run_evaluation(
        trained.path, tmp_path / "evaluation", num_hosts=2, controllers=["learned"], sampled=False, console="off"
    )
    [row] = json.loads(evaluated.result.read_text())["controllers"]
    assert (row["name"], row["num_hosts"]) == ("learned", 2)


def test_a_configuration_from_python_is_named_by_its_preset() -> None:
    config = esper.compose("+preset=smoke", "seed=3")
    assert config.name.startswith("smoke-seed3-")
    assert config.wandb.group == "smoke"
    assert esper.compose("+preset=[digits,smoke]").name.startswith("digits+smoke-seed0-")


def test_a_configuration_from_python_is_not_named_after_the_command_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = {"choices": {"preset": "p"}}
    record = {"mode": RunMode.MULTIRUN, "sweep": {"dir": "a/sweep"}, "job": {"num": 3}, "runtime": choices}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": record}))
    config = esper.compose("telemetry.console=off")
    assert config.wandb.group == "digits"
    assert re.fullmatch(r"digits-seed0-\d+-\d+-[0-9a-f]{4}", config.name)
    assert esper.compose().name.startswith("digits-seed0-")


def test_an_environment_of_every_split_has_its_hosts() -> None:
    config = esper.compose(*QUIET, "instances.num_validation=3", "evaluation.num_hosts=2", "env.mapping=grouped")
    for split, num_envs in (("train", config.trainer.num_envs), ("validation", 3), ("held_out", 2)):
        env = esper.build_env(config, split)
        assert (env.num_envs, {instance.split for instance in env.pool}) == (num_envs, {split})


def test_what_cannot_run_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word, message in (
        ("+preset=smok", r"preset: unknown 'smok' \(did you mean 'smoke'\?\)"),
        ("ppo.lr=abc", "ppo.lr must be a number, got 'abc'"),
        ("ppo.ent_coeff=1", r"unknown key 'ppo.ent_coeff' \(did you mean 'ent_coef'\?\)"),
        ("preset=smoke", r"preset is added with a plus: \+preset=<name>"),
        ("ppo.lr=-1", "ppo.lr must be above 0, got -1.0"),
    ):
        with pytest.raises(UsageError, match=f"^{message}[^\n]*$"):
            esper.compose(word)
    with pytest.raises(UsageError, match=r"^telemetry\.loggers: unknown 'x'; choose from"):
        esper.run_training(esper.compose(*QUIET, "telemetry.loggers=[x]"))
    with pytest.raises(UsageError, match=r"^resume=auto: from Python the folder of the run is run_dir="):
        esper.run_training(esper.compose(*QUIET, "resume=auto"))
    with pytest.raises(UsageError, match=r"^unknown key 'hosts' \(did you mean 'num_hosts'\?\)"):
        esper.run_evaluation("run", hosts=3)
    with pytest.raises(UsageError, match=r"^checkpoint"):
        esper.run_evaluation([])
    with pytest.raises(CheckpointError, match=r"^controller: 'nobody' is no .*; the shipped ones are digits_pays"):
        esper.load_controller("nobody")
    with pytest.raises(TypeError, match=r"controller: a Config is neither a name nor a path: give .*digits_pays"):
        esper.load_controller(esper.compose("+preset=smoke"))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
