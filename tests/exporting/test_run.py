"""The grown hosts of a run: the right one is exported, from what was kept or replayed, or refused in one line."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import SMALL

from esper.config import compose
from esper.config.errors import refused
from esper.config.export import ExportConfig
from esper.config.store import from_words
from esper.evaluation.grown import Grown, best
from esper.experiment.build import build_experiment
from esper.export import main
from esper.exporting.network import read_sheet
from esper.exporting.run import check, check_replay, chosen
from esper.runtime.run_folder import RunFolder
from esper.training.run import train


def record(val: float, fossilized: int, added: int = 0, *, crashed: bool = False) -> dict[str, Any]:
    return {"val_accuracy": val, "num_fossilized": fossilized, "added_parameters": added, "crashed": crashed}


def folder_of(path: Path, episodes: list[dict[str, Any]] | None, controller: str = "learned") -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    folder.config.write_text("seed: 0")
    if episodes is not None:
        folder.result.write_text(json.dumps({"episodes": {controller: episodes}}))
    return folder


HOSTS = [record(0.9, 0), record(0.8, 2, 50), record(0.8, 1, 40), record(0.95, 1, crashed=True), record(0.7, 3)]


def test_the_best_host_kept_something_did_not_crash_and_of_equals_is_the_smallest(tmp_path: Path) -> None:
    assert best(HOSTS) == 2
    assert best([HOSTS[0], HOSTS[3]]) is None
    folder = folder_of(tmp_path, HOSTS)
    assert chosen(folder, "best") == (2, HOSTS[2])
    assert chosen(folder, 0) == (0, HOSTS[0]), "a number may name one that kept nothing"


@pytest.mark.parametrize(
    ("episodes", "host", "message"),
    [
        (None, "best", "has not finished .*resume="),
        ([record(0.9, 0)], "best", "none of the 1 held-out hosts of .* kept a module; host=<0 to 0>"),
        (HOSTS, 5, "host=5: .* has held-out hosts 0 to 4"),
        (HOSTS, 3, "host=3 crashed"),
    ],
)
def test_a_host_that_is_not_there_is_refused(
    episodes: list[dict[str, Any]] | None, host: str | int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        chosen(folder_of(tmp_path, episodes), host)
    assert "\n" not in str(caught.value)


def test_a_folder_without_learned_hosts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no held-out hosts of 'learned'"):
        chosen(folder_of(tmp_path, HOSTS, "never"), "best")
    with pytest.raises(ValueError, match=r"run=.* is no run folder \(no config.yaml\)"):
        chosen(RunFolder(tmp_path / "other"), "best")


def test_hosts_that_grew_on_a_device_that_is_not_here_are_not_replayed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", HOSTS)
    result = {"episodes": {"learned": HOSTS}, "device": "cuda:1", "device_name": "Some GPU"}
    folder.result.write_text(json.dumps(result))
    request = ExportConfig(run=str(folder.path), out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"its hosts grew on Some GPU, .* visible: cpu.*save_grown=best") as caught:
        check(request)
    assert "\n" not in str(caught.value)


def test_replays_are_compared_with_what_was_logged(tmp_path: Path) -> None:
    """A run of an earlier version may have logged fewer numbers."""
    check_replay(tmp_path, Grown(host=2, episode=HOSTS[2] | {"new": 1.0}, state={}), HOSTS[2])
    with pytest.raises(ValueError, match=r"host 2 of .* has another val_accuracy when .* \(0.5, logged 0.8\)"):
        check_replay(tmp_path, Grown(host=2, episode=HOSTS[2] | {"val_accuracy": 0.5}, state={}), HOSTS[2])


def exported(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and last line of the command."""
    monkeypatch.setattr(sys, "argv", ["esper.export", *words])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, (printed.err if code else printed.out).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run=x"], "no value for out: use out=<value>"),
        (["run=x", "out=y", "hosts=3"], "unknown key 'hosts' .*did you mean 'host'"),
        (["run=x", "out=y", "host=first"], "host must be best or a whole number from 0 on, got 'first'"),
        (["run=x", "out=y", "format=[]"], "format must be a form or a list of forms"),
        (["run=x", "out=y", "format=h5"], "format: unknown 'h5'; choose from torch_export, onnx, source"),
        (["best"], "cannot read 'best': say key=value"),
        (["run=x", "out=y"], "run=x is no run folder"),
    ],
)
def test_a_bad_request_is_one_line(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, line = exported(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert line.startswith("error: ")
    assert_matches(message, line)
    assert list(tmp_path.iterdir()) == []


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


def test_words_are_values() -> None:
    with refused(ExportConfig):
        config = from_words(["run=a", "out=b", "host=3", "format=[onnx,source]"], ExportConfig)
    assert (config.host, config.formats) == (3, ["onnx", "source"])


CLOSING = (
    *("trainer.num_iterations=1", "evaluation.num_hosts=4", "evaluation.controllers=[learned]"),
    *("evaluation.deterministic=false", "telemetry.plots=false", "slots.max_seeds=3"),
)
RUNS = {
    "images": (*SMALL, "env.num_epochs=20"),
    "text": (
        *(
            "task=synthetic_text",
            "host=transformer",
            "+debug=fast",
            "env.mapping=matmul",
            "env.steps_per_epoch=1",
            "trainer.num_envs=3",
        ),
        *("slots.min_training_epochs=1", "slots.min_cull_age=1", "instances.num_train=7", "telemetry.console=off"),
        *("env.num_epochs=20", "host.num_layers=1", "slots.num_slots=2", "task.max_samples=64"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_replayed_host_is_the_one_that_was_kept_and_scores_as_logged(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    config = compose(*RUNS[kind], *CLOSING, "evaluation.save_grown=all")
    train(config, run)
    episodes = json.loads((run / "result.json").read_text())["episodes"]["learned"]
    assert sorted(path.name for path in (run / "grown").iterdir()) == [f"{number}.pt" for number in range(4)]
    number = best(episodes)
    assert number is not None, "otherwise there is little to see"
    words = [f"run={run}", "host=best", "format=source"]
    code, _ = exported(*words, f"out={tmp_path / 'kept'}", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    for path in (run / "grown").iterdir():
        path.unlink()
    code, _ = exported(*words, f"out={tmp_path / 'replayed'}", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    for name in ("model.py", "weights.safetensors"):
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "replayed" / name).read_bytes()
    sheets = [read_sheet(tmp_path / name) for name in ("kept", "replayed")]
    assert [sheet["source"] for sheet in sheets] == [
        f"kept in grown/{number}.pt",
        "replayed from the last checkpoint",
    ]
    assert sheets[0]["logged"] == episodes[number]
    assert list(sheets[0]["modules"]) == list(episodes[number]["kept"])

    task = build_experiment(config).task
    network = runpy.run_path(str(tmp_path / "kept" / "model.py"))["load"]()
    inputs, targets = task.prepare(task.test.inputs), task.test.targets
    with torch.no_grad():
        hits = (network(inputs).argmax(-1) == targets).double()
    if not sheets[0]["instance"]["classes"]:
        assert float(hits.mean()) == pytest.approx(episodes[number]["test_accuracy"], abs=1e-3)

    result = json.loads((run / "result.json").read_text())
    result["episodes"]["learned"][1]["added_parameters"] += 1
    (run / "result.json").write_text(json.dumps(result))
    code, line = exported(*words, f"out={tmp_path / 'other'}", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "host 1 of" in line
    assert "another added_parameters when it is replayed here" in line
    assert not (tmp_path / "other").exists()
