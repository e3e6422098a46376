"""A report reads all intact parts of a folder, whatever its state, and names the others."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

import pytest
from processes import LIMIT, started
from run_folders import config, lines, make_run, metrics

from esper.report.folders import EvaluationFolder, Run, find, read


def read_run(path: Path) -> Run:
    run = read(path)
    assert isinstance(run, Run)
    return run


def test_runs_are_found_below_any_folder_once_and_in_order(tmp_path: Path) -> None:
    b, a = make_run(tmp_path / "x" / "b"), make_run(tmp_path / "x" / "y" / "a")
    make_run(tmp_path / "x" / ".hydra")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("seed: 0")  # a configuration is no run
    assert find([tmp_path]) == sorted([a, b])
    assert find([tmp_path, tmp_path / "x", b]) == sorted([a, b])
    assert find([b]) == [b]
    assert find([tmp_path / "conf"]) == []


def test_what_belongs_to_a_run_is_no_run_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    make_run(run / "checkpoints" / "inner")
    assert find([tmp_path]) == [run]


def test_half_a_line_and_garbage_are_left_out_and_counted(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    text = (
        lines([metrics(1)]) + "garbage\n[1]\n" + '{"iteration": true}\n' + lines([metrics(2)]) + '{"iteration": 3, "ch'
    )
    (path / "metrics.jsonl").write_text(text)
    run = read_run(path)
    assert [record["iteration"] for record in run.metrics] == [1, 2]
    assert run.notes == ["metrics.jsonl: 4 lines are incomplete and left out"]


def test_of_an_iteration_that_was_repeated_after_a_kill_the_later_record_counts(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / "metrics.jsonl").write_text(lines([metrics(1), metrics(2, 5.0), metrics(2, 7.0), metrics(3)]))
    assert read_run(path).column("charts/episodic_return") == [1.0, 7.0, 1.0]


def test_what_is_no_finite_number_was_not_measured(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    rows = ['{"iteration": 1, "a": NaN, "b": 1}', '{"iteration": 2, "a": -Infinity}', '{"iteration": 3, "a": "x"}']
    (path / "metrics.jsonl").write_text("\n".join([*rows, '{"iteration": 4, "a": true}', ""]))
    run = read_run(path)
    assert run.column("a") == [None] * 4
    assert run.column("b") == [1.0, None, None, None]
    assert (run.last("a"), run.last("b")) == (None, 1.0)


@pytest.mark.parametrize(
    ("state", "iterations", "expected"),
    [
        ("finished", 4, "finished"),
        ("failed", 0, "failed"),
        ("preempted", 2, "preempted"),
        ("running", 2, "running"),
        (None, 2, "unknown"),
        (None, 0, "empty"),
        ("requeued", 2, "requeued"),
    ],
)
def test_states(tmp_path: Path, state: str | None, iterations: int, expected: str) -> None:
    assert read_run(make_run(tmp_path / "run", state=state, iterations=iterations)).state == expected


@pytest.mark.parametrize(("host", "expected"), [(platform.node(), "killed"), ("another machine", "running")])
def test_a_run_whose_process_is_gone_was_killed_but_only_its_own_machine_can_tell(
    tmp_path: Path, host: str, expected: str
) -> None:
    path = make_run(tmp_path / "run", state="running")
    with started([sys.executable, "-c", ""]) as child:
        child.wait(LIMIT)
    (path / "status.json").write_text(json.dumps({"state": "running", "host": host, "pid": child.pid}))
    assert read_run(path).state == expected
    (path / "status.json").write_text(json.dumps({"state": "running", "host": host, "pid": os.getpid()}))
    assert read_run(path).state == "running"


def test_missing_and_broken_files_are_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / "result.json").unlink()
    (path / "config.yaml").write_text("seed: [")
    run = read_run(path)
    assert (run.config, run.seed, len(run.metrics)) == ({}, None, 4)
    notes = "\n".join(run.notes)
    assert "config.yaml cannot be read" in notes
    assert "finished, but result.json is missing" in notes
    (path / "status.json").write_text("{")
    assert read_run(path).state == "unknown"
    (path / "config.yaml").write_text("- 1")
    assert "config.yaml is not a table of keys and values" in read_run(path).notes


def test_an_evaluation_is_told_from_a_run(tmp_path: Path) -> None:
    path = make_run(tmp_path / "evaluation")
    (path / "config.yaml").write_text("checkpoint: [a, b]\nseed: 0\n")
    assert isinstance(read(path), EvaluationFolder)


def test_the_error_is_the_last_line_of_the_traceback(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="failed", traceback="Traceback:\n  File x\nOSError: disk full\n")
    assert read_run(path).error == "OSError: disk full"
    assert read_run(make_run(tmp_path / "fine")).error is None


def test_numbers_of_the_learned_controller(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", gain=3.0))
    assert (run.learned("episode_return"), run.learned("test_accuracy"), run.learned("nothing")) == (3.0, 0.65, None)
    run.result = {"controllers": [{"name": "never", "episode_return": {"mean": 0.0}}]}
    assert run.learned("episode_return") is None
    assert config()["seed"] == 0
