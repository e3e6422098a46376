"""Whole runs whose output goes nowhere, or to a terminal that cannot show it, are finished."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
from pathlib import Path

import processes
import pytest
from helpers import SMALL

import esper.launch.begin

pytestmark = pytest.mark.slow

WORDS = (*SMALL, "evaluation.num_hosts=2", "evaluation.controllers=[learned,never]", "telemetry.plots=false")

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["esper.training.run", "esper.evaluation.run", "esper.launch.cli", "esper.views.timeline_plot"]
)


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def run(command: str, words: list[str], where: str, encoding: str) -> None:
    """One process of a command, from its start, with output and error somewhere."""
    descriptor = None if where == "closed" else broken_pipe() if where == "pipe" else os.open(where, os.O_WRONLY)
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.close(number) if descriptor is None else os.dup2(descriptor, number)
        stream = None if descriptor is None else io.TextIOWrapper(io.FileIO(number, "w"), encoding, "strict")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [f"esper-{command}", *words]
    raise SystemExit(getattr(esper.launch.begin, command)())


def code_of(command: str, words: list[str], where: str, encoding: str = "utf-8") -> int | None:
    return processes.run_to_its_end(context.Process(target=run, args=(command, words, where, encoding)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    assert code_of("train", [*WORDS, f"hydra.run.dir={run_dir}"], "/dev/null") == 0
    return run_dir


@pytest.mark.parametrize("console", ["plain", "live"])
@pytest.mark.parametrize(("where", "encoding"), [("pipe", "utf-8"), ("/dev/full", "latin-1"), ("closed", "utf-8")])
def test_a_run_is_finished_wherever_its_output_goes(tmp_path: Path, where: str, encoding: str, console: str) -> None:
    run_dir = tmp_path / "run"
    words = [*WORDS, f"telemetry.console={console}", f"hydra.run.dir={run_dir}"]
    assert code_of("train", words, where, encoding) == 0
    assert json.loads((run_dir / "status.json").read_text())["state"] == "finished"
    assert (run_dir / "result.json").exists()


@pytest.mark.parametrize("console", ["plain", "live"])
def test_a_terminal_that_is_not_utf8_is_shown_all_of_it(tmp_path: Path, console: str) -> None:
    said, run_dir = tmp_path / "said", tmp_path / "run[x]"
    said.touch()
    words = [*WORDS, f"telemetry.console={console}", f"hydra.run.dir='{run_dir}'"]
    assert code_of("train", words, str(said), "ascii") == 0
    shown = said.read_text(encoding="ascii")
    assert "mean +- standard error over 2 hosts" in shown
    assert f"everything is in {run_dir}\n" in shown


@pytest.mark.parametrize("where", ["pipe", "closed"])
def test_jobs_of_a_sweep_are_finished_wherever_its_output_goes(tmp_path: Path, where: str) -> None:
    words = ["-m", *WORDS, "telemetry.console=plain", "seed=1,2", f"hydra.sweep.dir={tmp_path}/sweep"]
    assert code_of("train", words, where) == 0
    states = [json.loads(path.read_text())["state"] for path in (tmp_path / "sweep").glob("*/status.json")]
    assert states == ["finished", "finished"]


@pytest.mark.parametrize(("where", "encoding"), [("pipe", "utf-8"), ("/dev/full", "utf-8"), ("/dev/null", "ascii")])
def test_evaluations_reports_and_whoever_watches_likewise(
    trained: Path, tmp_path: Path, where: str, encoding: str
) -> None:
    words = [f"checkpoint={trained}", "num_hosts=2", "controllers=[learned,never]", f"hydra.run.dir={tmp_path}/judged"]
    assert code_of("evaluate", words, where, encoding) == 0
    assert json.loads((tmp_path / "judged" / "status.json").read_text())["state"] == "finished"
    assert code_of("report", [str(trained), "--out", str(tmp_path / "report")], where, encoding) == 0
    assert code_of("watch", [str(trained)], where, encoding) == 0
