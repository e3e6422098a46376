"""Small whole runs: their files, their repeatability, and their failures."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import NEEDS_FP16, SMALL
from processes import run

import esper.experiment.build
import esper.training.run
import esper.training.trainer
from esper.algorithms import PPO, RolloutBuffer, UpdateResult
from esper.config import Config, compose, from_yaml, to_plain
from esper.config.store import to_yaml
from esper.evaluation.play import compare
from esper.experiment.build import build_experiment
from esper.experiment.checkpoint import load_checkpoint, restore_policy
from esper.experiment.rank_info import gather_rank_info
from esper.policy import Normaliser
from esper.policy.normaliser import Moments
from esper.population import build_mapping
from esper.population.calibration import Choice
from esper.runtime.records import read_jsonl, without_times
from esper.runtime.run_folder import RunFolder, RunFolderError
from esper.telemetry.anomalies import ADVICE
from esper.telemetry.hub import TelemetryHub
from esper.training.closing import training_report
from esper.training.run import train
from esper.training.trainer import Trainer
from tests.tiers import few
from tests.warm import WarmPython

TINY = (
    *SMALL,
    "num_threads=1",
    "env.num_epochs=6",
    "evaluation.num_hosts=3",
    "evaluation.deterministic=false",
    "telemetry.level=debug",
)

BARE = (*TINY, "evaluation.controllers=[never]", "telemetry.plots=false")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with everything: all controllers, plots, debug events."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(compose(*TINY, "seed=1"), run_dir)
    return run_dir


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    return [without_times(record) for record in read_jsonl(run_dir / "metrics.jsonl")]


# -------------------------------------------------------------------------------------------------- what a run leaves


def test_a_run_leaves_its_files_and_no_others(finished: Path) -> None:
    files = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    plots = ["learning_curve", "op_mix", "slot_timeline_learned", "slot_timeline_heuristic", "slot_timeline_random"]
    assert files == {
        "config.yaml",
        "metrics.jsonl",
        "events.jsonl",
        "result.json",
        "status.json",
        ".lock",
        "checkpoints/best.pt",
        "checkpoints/iteration-00001.pt",
        "checkpoints/iteration-00002.pt",
        "checkpoints/last.pt",
        *(f"plots/{name}.png" for name in plots),
    }
    for name in plots:
        assert (finished / "plots" / f"{name}.png").read_bytes().startswith(PNG)


def test_its_configuration_gives_the_same_configuration_again(finished: Path) -> None:
    again = from_yaml((finished / "config.yaml").read_text(), Config)
    assert to_yaml(again) == (finished / "config.yaml").read_text()
    assert again.seed == 1


def test_metrics_have_one_line_per_iteration_with_the_same_keys(finished: Path) -> None:
    records = read_jsonl(finished / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [1, 2]
    assert records[0].keys() == records[1].keys()
    assert [record["charts/env_epochs"] for record in records] == [18, 36]
    needed = {
        "charts/episodic_return", "charts/final_val_accuracy", "charts/never_val_accuracy", "charts/SPS",
        "charts/forced_wait_share", "losses/policy_loss", "losses/value_loss", "losses/approx_kl", "losses/clipfrac",
        "losses/explained_variance", "losses/grad_norm", "losses/skipped_minibatches", "time/control_share",
        "ops/choice_share/WAIT", "losses/entropy/op", "losses/ratio_max",
    }  # fmt: skip
    assert needed <= records[0].keys()
    for record in records:
        assert all(value is None or math.isfinite(value) for value in record.values())
        assert record["losses/skipped_minibatches"] == 0
        assert record["charts/num_episodes"] == 3
        assert 0 < record["time/control_share"] < 1


def test_events_are_typed_records_of_both_iterations(finished: Path) -> None:
    events = read_jsonl(finished / "events.jsonl")
    assert {event["iteration"] for event in events} == {1, 2}
    kinds = [event["kind"] for event in events]
    assert kinds.count("episode_ended") == 6
    assert kinds.count("last_action") == 36
    assert {"stage_changed", "gate_evaluated"} <= set(kinds)


def test_the_result_says_who_won_and_where_it_comes_from(finished: Path) -> None:
    result = read(finished / "result.json")
    names = ["learned", "heuristic", "random", "never"]
    assert [row["name"] for row in result["controllers"]] == names
    assert set(result["return_differences"]) == {"learned - heuristic", "learned - random", "learned - never"}
    never = result["controllers"][-1]
    assert never["episode_return"] == {"mean": 0.0, "sem": 0.0}
    assert set(result["episodes"]) == set(names)
    hosts = [[episode["instance"] for episode in result["episodes"][name]] for name in names]
    assert all(row == hosts[0] for row in hosts)
    returns = [episode["return"] for episode in result["episodes"]["learned"]]
    assert result["controllers"][0]["episode_return"]["mean"] == pytest.approx(sum(returns) / 3)
    for key in ("git_sha", "git_dirty", "versions", "device", "wall_seconds", "env_epochs_per_second"):
        assert key in result
    assert result["seed"] == 1
    assert read(finished / "status.json")["state"] == "finished"


def test_the_last_checkpoint_holds_the_policy_at_the_end(finished: Path) -> None:
    record = load_checkpoint(finished / "checkpoints" / "last.pt")
    assert record["iteration"] == 2
    assert record["config"] == to_plain(compose(*TINY, "seed=1"))
    experiment = build_experiment(compose(*TINY, "seed=1"))
    policy, normaliser = experiment.policy()
    young = {name: value.clone() for name, value in policy.state_dict().items()}
    restore_policy(record, policy, normaliser)
    assert any(not torch.equal(young[name], value) for name, value in policy.state_dict().items())
    assert float(normaliser.count) == 36, "two rollouts of three environments and six steps"
    first = load_checkpoint(finished / "checkpoints" / "iteration-00001.pt")
    assert float(first["normaliser"]["count"]) == 18


def test_the_saved_policy_plays_the_closing_table_again(finished: Path) -> None:
    experiment = build_experiment(compose(*TINY, "seed=1", "evaluation.controllers=[learned]"))
    policy, normaliser = experiment.policy()
    restore_policy(load_checkpoint(finished / "checkpoints" / "last.pt"), policy, normaliser)
    twins = experiment.twins(3, lambda done, total: None)
    [outcome] = compare(experiment, policy, normaliser, twins, lambda name, done, total: None)
    saved = read(finished / "result.json")["episodes"]["learned"]
    assert [episode["return"] for episode in saved] == outcome.returns().tolist()
    assert any(episode["return"] for episode in saved), "it did something"


# --------------------------------------------------------------------------------------------------------- repetition


@pytest.mark.slow
def test_same_seed_same_metrics_and_events_and_another_seed_others(finished: Path, tmp_path: Path) -> None:
    for name, seed in (("again", 1), ("other", 2)):
        train(compose(*BARE, f"seed={seed}"), tmp_path / name)
    assert metrics_of(tmp_path / "again") == metrics_of(finished)
    assert read_jsonl(tmp_path / "again" / "events.jsonl") == read_jsonl(finished / "events.jsonl")
    assert metrics_of(tmp_path / "other") != metrics_of(finished)


def test_rollouts_shorter_than_an_episode_go_on_where_they_were(tmp_path: Path) -> None:
    train(compose(*BARE, "trainer.num_steps=4", "trainer.num_iterations=3"), tmp_path / "run")
    assert [record["charts/num_episodes"] for record in metrics_of(tmp_path / "run")] == [0, 3, 3]
    assert metrics_of(tmp_path / "run")[0]["charts/episodic_return"] is None


def test_without_twins_the_score_itself_is_paid(tmp_path: Path) -> None:
    train(compose(*BARE, "reward.twin=none", "trainer.num_iterations=1"), tmp_path / "run")
    [record] = metrics_of(tmp_path / "run")
    assert record["charts/episodic_return"] > 5
    assert record["charts/never_val_accuracy"] is None


# ------------------------------------------------------------------------------------------------- order in the update


def make_trainer(tmp_path: Path, *overrides: str) -> Trainer:
    config = compose(*BARE, *overrides)
    folder = RunFolder.create(tmp_path / "run", to_yaml(config))
    trainer = Trainer(build_experiment(config), folder, TelemetryHub([]))
    trainer.begin()
    return trainer


def test_the_normaliser_changes_once_per_iteration_after_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    at_update, updates, real = [], [], PPO.update

    def update(ppo: PPO, buffer: RolloutBuffer, iteration: int) -> UpdateResult:
        at_update.append(float(trainer.normaliser.count))
        return real(ppo, buffer, iteration)

    def take_in(new: Moments) -> None:
        updates.append(float(new.count))
        Normaliser.merge(trainer.normaliser, new)

    monkeypatch.setattr(PPO, "update", update)
    monkeypatch.setattr(trainer.normaliser, "merge", take_in)
    for _ in range(2):
        trainer.iterate()
    assert at_update == [0, 18]
    assert updates == [18, 18]
    assert float(trainer.normaliser.count) == 36


def test_schedules_of_entropy_and_learning_rate_reach_the_update(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "ppo.anneal_lr=true", "ppo.anneal_iterations=4", "ppo.lr=0.01")
    metrics, used = [], []
    for _ in range(3):
        metrics.append(trainer.iterate())
        used.append(trainer.algorithm.optimizer.optimizer.param_groups[0]["lr"])
    assert [record["charts/ent_coef"] for record in metrics] == pytest.approx([0.02, 0.0155, 0.011])
    assert used == pytest.approx([0.01, 0.0075, 0.005])
    assert [record["charts/learning_rate"] for record in metrics] == used


@pytest.mark.slow
@pytest.mark.parametrize("amp", ["bf16", pytest.param("fp16", marks=NEEDS_FP16)])
def test_half_precision_runs_end_to_end_and_repeats(tmp_path: Path, amp: str) -> None:
    for name in ("first", "second"):
        train(compose(*BARE, f"amp={amp}", "evaluation.controllers=[learned,never]"), tmp_path / name)
    assert metrics_of(tmp_path / "first") == metrics_of(tmp_path / "second")
    for record in metrics_of(tmp_path / "first"):
        assert record["charts/non_finite_gradients"] == record["charts/num_crashed"] == 0
        assert math.isfinite(record["charts/episodic_return"])
    policy = load_checkpoint(tmp_path / "first" / "checkpoints" / "last.pt")["policy"]
    assert {value.dtype for value in policy.values()} == {torch.float32}
    never = read(tmp_path / "first" / "result.json")["controllers"][1]
    assert never["episode_return"]["mean"] == 0


@NEEDS_FP16
def test_an_overflow_of_the_policys_gradient_is_a_skipped_minibatch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "amp=fp16", "ppo.update_epochs=1")
    optimizer = trainer.algorithm.optimizer
    assert optimizer.scaler is not None
    optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    metrics = trainer.iterate()
    assert metrics["losses/skipped_minibatches"] == 2
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    assert optimizer.scaler.get_scale() == 2.0**58


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_a_ratio_explosion_is_reported_with_its_worst_entries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ppo.lr=3.0", "ppo.target_kl=null", "ppo.max_grad_norm=1000", "trainer.num_iterations=1")
    train(compose(*BARE, *words, "telemetry.console=plain"), tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    assert f"ratio_explosion in 1 of 1 iterations: {ADVICE['ratio_explosion']}" in said
    explosions = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["kind"] == "ratio_explosion"]
    assert explosions
    for explosion in explosions:
        assert explosion["iteration"] == 1
        assert explosion["count"] >= len(explosion["worst"]) >= 1
        for entry in explosion["worst"]:
            assert {"environment", "step", "head", "op", "old_log_prob", "new_log_prob", "advantage"} <= entry.keys()
            assert 0 <= entry["environment"] < 3
            assert 0 <= entry["step"] < 6


def test_a_healthy_run_reports_no_explosion(finished: Path) -> None:
    kinds = {event["kind"] for event in read_jsonl(finished / "events.jsonl")}
    assert not kinds & {"ratio_explosion", "non_finite_update", "host_crashed"}


@pytest.mark.parametrize("part", ["compare", "training_report"])
def test_a_failure_marks_the_run_failed_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """During the run or while its results are drawn and written: never "finished" without a result."""

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(esper.training.run, part, fail)
    with pytest.raises(RuntimeError, match="the sky fell"):
        train(compose(*BARE, "trainer.num_iterations=1"), tmp_path / "run")
    status = read(tmp_path / "run" / "status.json")
    assert status["state"] == "failed"
    assert "the sky fell" in status["traceback"]
    assert "in fail" in status["traceback"]
    assert not (tmp_path / "run" / "result.json").exists()
    assert len(metrics_of(tmp_path / "run")) == 1, "what was measured until then is on disk"
    assert read_jsonl(tmp_path / "run" / "events.jsonl")


def test_an_interrupt_marks_the_run_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PPO, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(compose(*BARE), tmp_path / "run")
    assert read(tmp_path / "run" / "status.json")["state"] == "preempted"


def test_a_folder_with_a_run_in_it_is_refused_and_left_alone(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match="already holds a run"):
        train(compose(*BARE), finished)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_host_that_crashes_in_training_ends_nothing_but_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every host explodes at this learning rate or not; either way the update stays finite and the run goes on."""
    trainer = make_trainer(tmp_path)
    step, steps = trainer.env.step, []

    def poisoned(actions: torch.Tensor) -> Any:
        steps.append(1)
        if len(steps) == 3:
            trainer.env.population.hosts.values.detach()[2, 0] = torch.nan
        return step(actions)

    monkeypatch.setattr(trainer.env, "step", poisoned)
    metrics = trainer.iterate()
    assert metrics["charts/num_crashed"] == 1
    assert metrics["charts/num_episodes"] == 3
    assert metrics["losses/skipped_minibatches"] == 0
    assert trainer.env.history.epoch.tolist() == [0, 0, 3]
    assert all(value is None or math.isfinite(value) for value in metrics.values())
    assert all(parameter.isfinite().all() for parameter in trainer.policy.parameters())
    again = trainer.iterate()
    assert again["charts/num_crashed"] == 0


@pytest.mark.parametrize("words", ["reward.family=paired", "reward.family=loss", "reward.twin=none"])
@few(1)
def test_hosts_that_diverge_by_themselves_do_not_stop_learning(words: str, tmp_path: Path) -> None:
    families = f"+instances.families={{intact:1,lr_times_1{'0' * 30}:1,starved_0:0,starved_1:0,starved_2:0}}"
    trainer = make_trainer(tmp_path, families, words, "trainer.num_envs=4")
    before = [parameter.detach().clone() for parameter in trainer.policy.parameters()]
    for _ in range(2):
        metrics = trainer.iterate()
        assert metrics is not None
        assert metrics["charts/num_crashed"] > 0
        assert metrics["losses/skipped_minibatches"] == 0
        assert all(math.isfinite(metrics[f"charts/{name}"]) for name in ("episodic_return", "final_val_accuracy"))
        assert all(value is None or math.isfinite(value) for value in metrics.values())
    assert trainer.normaliser.mean.isfinite().all()
    assert trainer.normaliser.m2.isfinite().all()
    changed = [not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True)]
    assert all(parameter.isfinite().all() for parameter in trainer.policy.parameters())
    assert any(changed)


def test_the_closing_report_does_without_a_learned_controller_or_plots(tmp_path: Path) -> None:
    config = compose(*BARE)
    experiment = build_experiment(config)
    folder = RunFolder.create(tmp_path / "run", to_yaml(config))
    folder.metrics.write_text('{"iteration": 1, "charts/SPS": 2.0}\n{"iteration": 2, "charts/SPS": 4.0}\n')
    policy, normaliser = experiment.policy()
    outcomes = compare(experiment, policy, normaliser, None, lambda name, done, total: None)
    training_report(experiment, folder, outcomes, gather_rank_info(experiment), elapsed=lambda: 1.5)
    result = read(folder.result)
    assert result["return_differences"] == {}
    assert result["env_epochs_per_second"] == 3.0
    assert result["wall_seconds"] == 1.5
    assert not list(folder.plots.iterdir())


@pytest.mark.slow
def test_the_smoke_preset_runs_without_assertions(tmp_path: Path) -> None:
    """``python -O``, as a user would: exit code 0 and a finished run."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-O", "-m", "esper.train", "+preset=smoke", "num_threads=1", f"hydra.run.dir={run_dir}"]
    done = run(command, cwd=tmp_path, env=os.environ | {"PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stderr
    assert read(run_dir / "status.json")["state"] == "finished"
    assert len(read_jsonl(run_dir / "metrics.jsonl")) == 2
    assert "never" in done.stdout


def test_the_chosen_mapping_is_told_pinned_and_used_for_twins_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"grouped": 1e-3, "loop": 3e-3}
    monkeypatch.setattr(
        esper.experiment.build, "choose_mapping", lambda workload: Choice(mapping="grouped", seconds=seconds)
    )
    made = []
    monkeypatch.setattr(esper.experiment.build, "build_mapping", lambda name: made.append(name) or build_mapping(name))
    train(compose(*BARE, "env.mapping=auto", "trainer.num_iterations=1", "telemetry.console=plain"), tmp_path / "run")
    assert (
        "mapping auto: grouped (1 ms per host and step; loop 3), measured now" in capsys.readouterr().out.splitlines()
    )
    assert set(made) == {"grouped"}
    result = read(tmp_path / "run" / "result.json")
    assert result["mapping"] == "grouped"
    assert {episode["return"] for episode in result["episodes"]["never"]} == {0.0}
    config = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt")["config"]
    assert config["env"]["mapping"] == "grouped", "a run that goes on must not choose again"
    assert "mapping: grouped" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_mapping_chosen_elsewhere_is_taken_without_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(workload: object) -> Choice:
        raise AssertionError("nothing to choose")

    monkeypatch.setattr(esper.experiment.build, "choose_mapping", measured)
    experiment = build_experiment(compose(*BARE, "env.mapping=auto"), choice=Choice(mapping="vmap"))
    assert experiment.population(2).mapping.name == experiment.config.env.mapping.name == "vmap"
    assert build_experiment(compose(*BARE, "env.mapping=loop")).choice == Choice(mapping="loop")


@pytest.mark.slow
def test_auto_measures_once_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    """Two runs of the same command, each in a process of its own, as a user would."""
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "cache"))
    lines = []
    for name in ("first", "second"):
        command = [warm_python.executable, "-m", "esper.train", "+preset=smoke", "telemetry.console=plain"]
        run_dir = f"hydra.run.dir={tmp_path / name}"
        done = run([*command, run_dir], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        lines += [line for line in done.stdout.splitlines() if line.startswith("mapping auto: ")]
    assert lines[0].endswith("), measured now")
    assert lines[1] == lines[0].replace("measured now", "cached")
    assert metrics_of(tmp_path / "first") == metrics_of(tmp_path / "second")
