"""Resuming a run: exactly, from wherever it was interrupted, or refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import NEEDS_FP16, SMALL
from resuming import different_runs, differing, metrics_of

import esper.training.run
from esper.config import Config, UsageError, compose, from_yaml
from esper.config.store import to_yaml
from esper.envs.growth import GrowthEnv
from esper.experiment.build import build_experiment
from esper.runtime.preemption import Preempted
from esper.runtime.run_folder import RunCondition, RunFolder
from esper.telemetry.hub import TelemetryHub
from esper.training.run import train
from esper.training.start import Start, find_start
from esper.training.trainer import Trainer
from tests.tiers import few, slowly

# Rollouts that end in mid-episode; three hosts of ten epochs, growing in a hurry.
WORDS = (
    *SMALL,
    "env.num_epochs=6",
    "trainer.num_steps=4",
    "reward.rent_weights=[0.5,9]",
    "observation.price=true",
    "reward.compute_weight=5",
    "trainer.num_iterations=4",
    "trainer.checkpoint_every=2",
    "evaluation.num_hosts=3",
    "evaluation.controllers=[learned,never]",
    "telemetry.level=debug",
    "telemetry.plots=false",
)
STEPS = 16


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGTERM) -> None:
    """Have this process send itself a signal in an environment step, counted from 1 from now on."""
    whole, count = GrowthEnv.step, 0

    def stepped(env: GrowthEnv, actions: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), number)
        return whole(env, actions)

    monkeypatch.setattr(GrowthEnv, "step", stepped)


def go_on(run_dir: Path, *words: str) -> None:
    """Resume like ``resume=<folder>`` on the command line."""
    config = from_yaml((run_dir / "config.yaml").read_text(), Config)
    config = replace(config, resume=str(run_dir))
    for word in words:
        key, value = word.split("=")
        section, name = key.split(".")
        setattr(getattr(config, section), name, int(value))
    train(config, run_dir)


def status(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the uninterrupted run."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(compose(*WORDS), run_dir)
    return run_dir


# --------------------------------------------------------------------------------------------------------- exactness


def test_interrupted_in_every_way_it_is_the_same_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the first step, in mid-rollout, in the last step of a rollout or of an episode, and at every
    step.
    """
    run_dir, done = tmp_path / "run", 0
    for number, step in enumerate((1, 2, 1, 4, 5, 1)):
        with monkeypatch.context() as patch:
            interrupt_at(patch, step, signal.SIGINT if number % 2 else signal.SIGTERM)
            with pytest.raises(Preempted) as stopped:
                train(compose(*WORDS), run_dir) if number == 0 else go_on(run_dir)
        done += step
        assert stopped.value.code == (130 if number % 2 else 143)
        assert status(run_dir)["state"] == "preempted"
        iteration, within = divmod(done - 1, 4)
        assert (status(run_dir)["iteration"], status(run_dir)["step"]) == (iteration, within + 1)
        assert RunFolder(run_dir).condition() is RunCondition.INTERRUPTED
    assert done < STEPS
    go_on(run_dir)
    assert status(run_dir)["state"] == "finished"
    assert different_runs(whole, run_dir) == []


@pytest.mark.slow
def test_iterations_and_as_many_more_are_twice_as_many(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(compose(*WORDS, "trainer.num_iterations=2"), run_dir)
    go_on(run_dir, "trainer.num_iterations=4")
    assert different_runs(whole, run_dir) == []
    assert (run_dir / "config.yaml").read_text() == (whole / "config.yaml").read_text()


@pytest.mark.parametrize("part", ["compare", pytest.param("training_report", marks=pytest.mark.slow)])
def test_a_run_that_was_interrupted_after_its_loop_only_compares(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def interrupted(*arguments: object, **named: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(esper.training.run, part, interrupted)
        with pytest.raises(Preempted):
            train(compose(*WORDS), tmp_path / "run")
    assert status(tmp_path / "run")["state"] == "preempted"
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.setattr(Trainer, "iterate", None)
    go_on(tmp_path / "run")
    assert different_runs(whole, tmp_path / "run") == []


@pytest.mark.slow
def test_a_run_that_was_killed_repeats_what_came_after_its_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have more lines than the checkpoint knows, and end within a line."""
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 10)  # in the midst of a rollout and of an episode
        with pytest.raises(Preempted):
            train(compose(*WORDS), run_dir)
    for name in ("metrics.jsonl", "events.jsonl"):
        with (run_dir / name).open("a") as file:
            file.write('{"iteration": 7}\n{"iterat')
    (run_dir / "status.json").write_text('{"state": "running"}')
    (run_dir / "checkpoints" / ".last.pt.99.tmp").write_bytes(b"half")
    assert RunFolder(run_dir).condition() is RunCondition.INTERRUPTED
    go_on(run_dir)
    assert different_runs(whole, run_dir) == []


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, (whole / "config.yaml").read_text()).status("running")
    (run_dir / "events.jsonl").write_text('{"kind": "host')
    go_on(run_dir)
    assert different_runs(whole, run_dir) == []


@pytest.mark.slow
def test_a_failed_run_goes_on_too(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    iterate = Trainer.iterate

    def fail(trainer: Trainer) -> Any:
        if trainer.iteration == 2:
            raise OSError("no space left on device")
        return iterate(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "iterate", fail)
        with pytest.raises(OSError, match="no space"):
            train(compose(*WORDS), run_dir)
    assert RunFolder(run_dir).condition() is RunCondition.FAILED
    go_on(run_dir)
    assert different_runs(whole, run_dir) == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("amp=fp16",), marks=(NEEDS_FP16, pytest.mark.slow)),
        slowly(("env.mapping=loop", "reward.twin=none", "slots.max_seeds=2")),
        ("reward.family=contribution", "counterfactual.shapley_permutations=4", "observation.slot_probes=[]"),
        slowly(("policy.body=shared", "observation.scale_free=true")),
        slowly(("imitation.controller=random", "imitation.iterations=3")),
        slowly(("imitation.controller=schedule", "imitation.iterations=2", "algorithm=a2c")),
        slowly(("ppo.anneal_lr=true", "ppo.anneal_iterations=4", "+instances.families={label_noise+lr_times_3: 5}")),
    ],
)
def test_what_else_has_a_state_goes_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    words = (*WORDS, "trainer.num_iterations=3", *words)
    train(compose(*words), tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 10)  # in the midst of a rollout and of an episode
        with pytest.raises(Preempted):
            train(compose(*words), tmp_path / "run")
    go_on(tmp_path / "run")
    assert different_runs(tmp_path / "whole", tmp_path / "run") == []


# ------------------------------------------------------------------------------------------------------ completeness


def trainer_of(run_dir: Path) -> Trainer:
    config = compose(*WORDS, "reward.stage_shaping=1.0")  # a potential that is not 0 while modules are in TRAINING
    return Trainer(build_experiment(config), RunFolder.create(run_dir, to_yaml(config)), TelemetryHub([]))


def half_way(run_dir: Path) -> Trainer:
    """Make a trainer in its third rollout, whose state is on disk."""
    trainer, steps = trainer_of(run_dir), 0

    def ask() -> int:
        nonlocal steps
        steps += 1
        return int(steps == 10)

    trainer._vote.ask = ask  # type: ignore[method-assign]
    trainer.begin()
    trainer.save(trainer.iterate())
    trainer.save(trainer.iterate())
    assert trainer.iterate() is None
    trainer.save(None)
    return trainer


def restored(run_dir: Path, source: Path) -> Trainer:
    """Make a new trainer restored from the checkpoint of another."""
    trainer = trainer_of(run_dir)
    folder = RunFolder(source)
    trainer.begin(find_start(folder, replace(trainer.config, resume="auto")))
    return trainer


def test_everything_that_a_trainer_holds_is_restored(tmp_path: Path) -> None:
    """Compares every attribute reachable from a trainer: a new one that changes in a run and is not saved fails
    here.
    """
    old, new = half_way(tmp_path / "old"), trainer_of(tmp_path / "new")
    new.begin()
    found = {line.split(":")[0].split("[")[0] for line in differing(old, new)}
    assert {".env.state.blueprint", ".env.history.epoch", ".rollout.raw", ".best.score"} <= found, "it looks there"
    assert differing(old, restored(tmp_path / "restored", tmp_path / "old")) == []


@pytest.mark.parametrize(
    "holder",
    ["env", "env.population", "env.population.hosts", "env.episodes", "twins", "buffer", "rollout", "recorder", "best"],
)
@few(3)
def test_a_forgotten_attribute_is_noticed(tmp_path: Path, holder: str) -> None:
    old, new = trainer_of(tmp_path / "old"), trainer_of(tmp_path / "new")
    old.begin(), new.begin()
    assert differing(old, new) == []
    part: Any = old
    for name in holder.split("."):
        part = getattr(part, name)
    if holder == "rollout":
        part.raw = [torch.ones(1)]
    else:
        part.extra, twin = 1, new
        for name in holder.split("."):
            twin = getattr(twin, name)
        twin.extra = 0  # type: ignore[attr-defined]
    assert differing(old, new)


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.fixture
def interrupted(whole: Path, tmp_path: Path) -> Path:
    """Make a folder of a run that can be resumed, like one killed before its result was written."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "result.json").unlink()
    RunFolder(run_dir).status("running")
    return run_dir


def truncated(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:5000])


def foreign(run_dir: Path) -> None:
    torch.save({"model": torch.zeros(3)}, run_dir / "checkpoints" / "last.pt")


def policy_only(run_dir: Path) -> None:
    shutil.copy(run_dir / "checkpoints" / "best.pt", run_dir / "checkpoints" / "last.pt")


def gone(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "last.pt").unlink()


def dangling(run_dir: Path) -> None:
    gone(run_dir)
    (run_dir / "checkpoints" / "last.pt").symlink_to("nowhere")


def change_config(run_dir: Path, before: str, after: str) -> None:
    text = (run_dir / "config.yaml").read_text()
    assert before in text
    (run_dir / "config.yaml").write_text(text.replace(before, after))


def other_slot_count(run_dir: Path) -> None:
    change_config(run_dir, "num_slots: 3", "num_slots: 2")


def other_probes(run_dir: Path) -> None:
    first, second = "  - dead_channels\n", "  - effective_rank\n"
    change_config(run_dir, first + second, second + first)


def cut_metrics(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_text("")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, "last.pt is truncated or not a checkpoint"),
        (foreign, "last.pt is not an Esper checkpoint"),
        (policy_only, "holds a policy only, no training state"),
        (
            gone,
            "last.pt is missing, from which the run would resume: restore it, or start a new run from the policy of",
        ),
        (dangling, "no checkpoint at .*last.pt"),
        (other_slot_count, "is of another run: it has slots.num_slots=3, not 2"),
        (other_probes, "is of another run: it has observation.slot_probes="),
        (cut_metrics, "metrics.jsonl has 0 bytes, but its checkpoint was written after"),
    ],
)
@few(4)
def test_what_cannot_go_on_is_refused_and_left_as_it_is(
    interrupted: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(interrupted)
    before = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    with pytest.raises((UsageError, ValueError), match=message) as caught:
        go_on(interrupted)
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}


def test_a_continued_run_keeps_what_it_computes(interrupted: Path) -> None:
    config = from_yaml((interrupted / "config.yaml").read_text(), Config)
    config = replace(config, resume="auto", ppo=replace(config.ppo, lr=0.5), seed=3)
    with pytest.raises(UsageError, match=r"has ppo.lr=0.001, not 0.5; seed=0, not 3: a continued run keeps that"):
        train(config, interrupted)


def test_two_processes_do_not_write_to_one_run(interrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.runtime.run_folder.LOCK_SECONDS", 0.2)
    with RunFolder(interrupted).lock():
        assert RunFolder(interrupted).condition() is RunCondition.RUNNING
        with pytest.raises(ValueError, match="another process writes to run folder"):
            go_on(interrupted)
    assert RunFolder(interrupted).condition() is RunCondition.INTERRUPTED


def test_a_finished_run_is_left_alone(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    config = replace(from_yaml((whole / "config.yaml").read_text(), Config), resume="auto")
    train(replace(config, telemetry=replace(config.telemetry, console="plain")), whole)
    assert "has finished: trainer.num_iterations=<more> extends it" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


def test_the_thread_count_is_part_of_a_run(whole: Path) -> None:
    start = find_start(RunFolder(whole), replace(compose(*WORDS), resume="auto"))
    assert start.training["ranks"][0]["num_threads"] == 1
    assert isinstance(start, Start)
    assert len(metrics_of(whole)) == 4
