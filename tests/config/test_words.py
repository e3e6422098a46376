"""Paths as people type them: they need no quotes where they can mean one thing; otherwise the right ones are shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hypothesis import given
from hypothesis import strategies as st

from esper.config import Config, UsageError, compose, from_yaml, to_yaml
from esper.config.evaluate import EvaluateConfig
from esper.config.words import quoted, readable_by_hydra

if TYPE_CHECKING:
    from command_line import CommandLine

HYDRAS = ("hydra.run.dir", "hydra.sweep.dir")
PATHS = [
    *(
        (Config, key)
        for key in ("task.root", "task.url", "checkpoint.path", "resume", "name", "wandb.project", *HYDRAS)
    ),
    *((EvaluateConfig, key) for key in ("checkpoint", "tuning", "name", *HYDRAS)),
]
"""Keys whose values are paths, or names of folders."""

ODD = [
    "/a=b",
    "a[0]",
    "/a b",
    "/$x",
    "/it's",
    '/"x"',
    "it's\\",
    "/(a)",
    "{a}",
    "é/ü",
    "/a:b?c=d&e",
    "1e3",
    "1_0",
    "true",
    "a|b",
]


def read(word: str, schema: type = Config, *, sweeps: bool = False) -> Override:
    """Return Hydra's reading of an argument as typed."""
    [parsed] = OverridesParser.create().parse_overrides(readable_by_hydra([word], schema, sweeps=sweeps))
    return parsed


@pytest.mark.parametrize(("schema", "key"), PATHS)
def test_a_path_is_what_is_typed(schema: type, key: str) -> None:
    for value in ODD:
        for sweeps in (False, True):
            assert read(f"{key}={value}", schema, sweeps=sweeps).value() == value


@given(st.text("ab/=[](){}~'\",.: é|&?%@+-*#;<>", min_size=1, max_size=12).map(lambda text: f"/{text}x"))
def test_any_path_is_what_is_typed(value: str) -> None:
    assert read(f"task.root={value}").value() == value


@given(st.text(max_size=20))
def test_text_in_quotes_is_that_text(value: str) -> None:
    assert OverridesParser.create().parse_override(f"name={quoted(value)}").value() == value


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("task.root='/a=b'", "/a=b"),
        ("task.root=null", None),
        ("task.root=", ""),
        ("task.root=${oc.env:HOME}/a=b", "${oc.env:HOME}/a=b"),
        ("task.root=/a,b", "/a,b"),
        ("trainer.num_envs=1e3", 1000.0),
        ("host.widths=[8,8]", [8, 8]),
    ],
)
def test_what_has_quotes_or_another_meaning_is_left_alone(word: str, value: object) -> None:
    assert read(word).value() == value


@pytest.mark.parametrize("word", ["checkpoint=[a,b]", "checkpoint=['a=b',c]"])
def test_a_list_of_paths_is_one(word: str) -> None:
    assert isinstance(read(word, EvaluateConfig).value(), list)


@pytest.mark.parametrize(
    ("word", "schema", "sweeps", "shown"),
    [
        ("task.root=[x]", Config, False, "\"task.root='[x]'\""),
        ("resume={a:1}", Config, False, "\"resume='{a:1}'\""),
        ("checkpoint=[a=b,c]", EvaluateConfig, False, "\"checkpoint=['a=b','c']\""),
        ("task.root=/a=b,/c", Config, True, "\"task.root='/a=b,/c'\"; as several, \"task.root='/a=b','/c'\""),
    ],
)
def test_what_may_mean_two_things_is_refused_and_the_quotes_that_are_shown_work(
    word: str, schema: type, sweeps: bool, shown: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        readable_by_hydra([word], schema, sweeps=sweeps)
    assert str(refusal.value).endswith(shown)
    for typed in shown.split("; as several, "):
        assert readable_by_hydra([typed.strip('"')], schema, sweeps=sweeps) == [typed.strip('"')]


@pytest.mark.parametrize("word", ["ppo.lr=~/x", "wandb.tags=[é]"])
def test_other_values_that_need_quotes_are_refused_without_the_lexers_name(esper: CommandLine, word: str) -> None:
    code, err, _ = esper(word)
    assert (code, err) == (2, f"error: cannot read {word!r}: put quotes around such text, as in \"key='value'\"\n")


# ------------------------------------------------------------------------------------------------- the home folder


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_home_folder_is_found_in_every_path_of_a_training_run(home: Path, esper: CommandLine) -> None:
    code, err, [(config, run_dir)] = esper(
        "task.root=~/data", "checkpoint.path=~/a=b", "hydra.run.dir=~/runs/[1]", "+preset=smoke"
    )
    assert (code, err) == (0, "")
    assert config.task.root == f"{home}/data"
    assert config.checkpoint.path == f"{home}/a=b"
    assert run_dir == home / "runs" / "[1]"
    code, err, runs = esper("resume=~/nowhere")
    assert (code, runs) == (2, [])
    assert err.startswith(f"error: resume: {home}/nowhere is not a run folder")


def test_the_home_folder_is_found_in_every_path_of_an_evaluation(home: Path) -> None:
    config = EvaluateConfig(checkpoint=["~/a", "b"], tuning="~/t.json")
    assert (config.checkpoints, config.tunings) == ([f"{home}/a", "b"], [f"{home}/t.json"])


def test_the_home_folder_is_found_in_files_too(home: Path, esper: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mine" / "preset").mkdir(parents=True)
    (tmp_path / "mine" / "preset" / "p.yaml").write_text("# @package _global_\ntask: {root: ~/data}\n")
    _, _, [(config, _)] = esper("--config-dir", "mine", "+preset=p")
    assert config.task.root == f"{home}/data"


def test_a_run_that_is_resumed_from_another_folder_finds_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = to_yaml(compose("task.root=data", "checkpoint.path=outputs/run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = from_yaml(saved, Config)
    assert (config.task.root, config.checkpoint.path) == (f"{tmp_path}/data", f"{tmp_path}/outputs/run")


@pytest.mark.parametrize("word", ["hydra.run.dir=", "hydra.run.dir=''", "hydra.sweep.dir="])
def test_a_folder_without_a_name_is_refused(word: str, esper: CommandLine, tmp_path: Path) -> None:
    code, err, _ = esper(word)
    assert (code, err.count("\n")) == (2, 1)
    assert f"error: {word.partition('=')[0]} must be a folder, got " in err
    assert list(tmp_path.iterdir()) == []


def test_a_home_folder_that_nobody_has_stays_as_typed() -> None:
    assert compose("task.root='~nobody_has_this_name/x'").task.root == os.path.abspath("~nobody_has_this_name/x")


@pytest.mark.slow
def test_jobs_of_a_sweep_find_odd_folders(esper: CommandLine, tmp_path: Path) -> None:
    words = ["-m", f"hydra.sweep.dir={tmp_path}/it's [x]=1", "seed=1,2"]
    code, err, runs = esper(*words, "task.root='é','b=c'")
    assert (code, err) == (0, "")
    assert {folder.parent for _, folder in runs} == {tmp_path / "it's [x]=1"}
    assert {config.task.root for config, _ in runs} == {f"{tmp_path}/é", f"{tmp_path}/b=c"}
    assert esper(*words, "task.root='é','b=c'")[2] == [], "and are found again"
