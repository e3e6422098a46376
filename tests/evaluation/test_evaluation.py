"""``python -m esper.evaluate``: refuses impossible requests, and writes consistent numbers."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CommandLine
from helpers import SMALL
from processes import run

from esper.config import compose, to_plain
from esper.config.evaluate import EvaluateConfig
from esper.config.root import EvaluationSplit
from esper.config.wandb import WandbConfig
from esper.evaluate import main
from esper.evaluation.run import Trained, check, evaluate, experiment_config, read_trained
from esper.experiment.build import build_experiment
from esper.experiment.checkpoint import save_checkpoint
from esper.experiment.shipped import shipped_controllers
from esper.runtime.options import Greedy, WandbMode
from esper.runtime.preemption import Preempted
from esper.runtime.run_folder import RunState
from esper.runtime.terminal import ConsoleMode
from tests.tiers import few
from tests.warm import WarmPython

CONTROLLERS = ["never", "learned", "schedule_best", "random", "static_final"]
WORDS = (*SMALL, "env.num_epochs=8", "instances.num_train=7")
SHRUNK = (
    *("task=synthetic_text", "+debug=fast", "env.mapping=matmul", "env.num_epochs=8", "env.steps_per_epoch=1"),
    *("slots.min_training_epochs=1", "slots.min_cull_age=1", "instances.num_train=7", "telemetry.console=off"),
)

"""A preset of text, shortened as much."""


def checkpoint(folder: Path, *overrides: str, words: Sequence[str] = WORDS) -> str:
    """Make a run folder with an untrained policy."""
    experiment = build_experiment(compose(*words, *overrides))
    policy, normaliser = experiment.policy()
    (folder / "checkpoints").mkdir(parents=True)
    save_checkpoint(
        folder / "checkpoints" / "last.pt",
        policy=policy,
        normaliser=normaliser,
        iteration=3,
        config=to_plain(experiment.config),
    )
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Make run folders of two run seeds."""
    folder = tmp_path_factory.mktemp("runs")
    return [checkpoint(folder / f"seed{seed}", f"seed={seed}") for seed in (0, 1)]


@pytest.fixture(scope="module")
def config(runs: list[str]) -> EvaluateConfig:
    return EvaluateConfig(
        checkpoint=runs, controllers=CONTROLLERS, num_hosts=7, tuning_epochs=160, draws=200, console=ConsoleMode.off
    )


@pytest.fixture(scope="module")
def finished(config: EvaluateConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    check(config)
    evaluate(config, folder)
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "hosts.csv").open() as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint": "nowhere"},
            "no checkpoint at nowhere, nor a shipped controller of that name; there are digits_pays",
        ),
        ({"checkpoint": "no/where"}, "no checkpoint at no/where"),
        ({"controllers": ["lerned"]}, "controllers: unknown 'lerned' (did you mean 'learned'?); choose from learned"),
        ({"controllers": ["never", "static_final"]}, "'static_final' trains what 'learned' ended with: name both"),
        (
            {"controllers": ["schedule_per_family"], "families": {"narrow_4": 1.0}},
            "has no plan for hosts of family narrow_4, which training instances do not have: leave it out",
        ),
        (
            {
                "controllers": ["never", "schedule_per_family"],
                "families": {f"narrow_{width}": 1.0 for width in (2, 4, 6, 7)},
            },
            "narrow_2, narrow_4, narrow_6 and 1 more, which training instances do not have: controllers=[never] leaves",
        ),
        ({"families": {"starved_9": 1.0}}, "names block 9; the host has blocks 0 to 2"),
        ({"tuning": "nowhere.json"}, "tuning: cannot read nowhere.json (No such file or directory)"),
        ({"tuning": ["a.json", "a.json"]}, "tuning names a.json more than once"),
        ({"devices": 99}, "devices=99: 99 is not there; visible: cpu"),
    ],
)
@few(5)
def test_what_cannot_be_judged_is_refused_at_once(
    config: EvaluateConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        check(replace(config, **changes))
    assert message in str(caught.value)


def test_a_shipped_controller_is_judged_by_its_name() -> None:
    [trained] = read_trained(EvaluateConfig(checkpoint="digits_pays"))
    assert trained.path == shipped_controllers()["digits_pays"]
    check(EvaluateConfig(checkpoint="digits_pays", controllers=["learned"]))


@pytest.mark.parametrize("content", ["", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_foreign_tuning_is_refused_by_name(config: EvaluateConfig, tmp_path: Path, content: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"tuning: {path}: "):
        check(replace(config, tuning=str(path)))


@pytest.mark.slow
def test_a_tuning_of_another_experiment_is_refused(config: EvaluateConfig, finished: Path, tmp_path: Path) -> None:
    """Only keys that training does not depend on may differ: held-out instances, and the mapping."""
    tuning = str(finished / "tuning.json")
    same = checkpoint(tmp_path / "same", "env.mapping=loop", "instances.num_held_out=40", "ppo.lr=0.1")
    check(replace(config, tuning=tuning, checkpoint=[*config.checkpoints, same]))
    other = checkpoint(tmp_path / "other", "reward.rent_weight=1")
    with pytest.raises(ValueError, match="was found on training instances of another configuration"):
        check(replace(config, tuning=tuning, checkpoint=other))


def test_hosts_of_training_are_played_where_they_are_asked_for(config: EvaluateConfig, tmp_path: Path) -> None:
    config = replace(config, controllers=["never"], split=EvaluationSplit.train, tuning_epochs=None)
    evaluate(config, tmp_path)
    trained_on = build_experiment(compose(*WORDS)).pool("train", 7)
    assert sorted((int(row["instance"]), row["family"]) for row in table(tmp_path)) == [
        (instance.index, instance.family) for instance in trained_on
    ]
    with pytest.raises(ValueError, match=r"num_hosts must be at most 7 \(instances.num_train\), got 8"):
        check(replace(config, num_hosts=8))
    with pytest.raises(ValueError, match="leave them out with split=train"):
        replace(config, families={"intact": 1.0})


def test_run_seeds_of_different_experiments_are_not_mixed(runs: list[str], tmp_path: Path) -> None:
    other = checkpoint(tmp_path / "other", "slots.max_seeds=2")
    with pytest.raises(ValueError, match="differ in slots: one evaluation takes run seeds of one configuration"):
        check(EvaluateConfig(checkpoint=[runs[0], other]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no value for checkpoint: use checkpoint=<value>"),
        (["checkpoint=nowhere"], "no checkpoint at nowhere"),
        (["checkpoint=nowhere", "num_hosts=1"], "num_hosts must be at least 2, got 1"),
        (["checkpoint=nowhere", "num_host=3"], "unknown key 'num_host' (did you mean 'num_hosts'?)"),
    ],
)
def test_the_command_answers_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper.evaluate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- results


def test_an_evaluation_leaves_no_folder_of_checkpoints(finished: Path) -> None:
    assert [path.name for path in finished.iterdir() if path.is_dir()] == ["plots"]


def test_rows_stand_in_the_order_asked_for_with_a_sampled_one_after_the_learned(finished: Path) -> None:
    rows = read(finished / "result.json")["controllers"]
    assert [row["name"] for row in rows] == [
        "never",
        "learned",
        "learned_sampled",
        "schedule_best",
        "random",
        "static_final",
    ]
    assert [row["num_runs"] for row in rows] == [1, 2, 2, 1, 1, 2]
    assert {row["num_hosts"] for row in rows} == {7}
    assert read(finished / "status.json")["state"] == RunState.FINISHED


def test_never_earns_exactly_nothing_and_every_difference_is_the_mean_over_pairs(finished: Path) -> None:
    rows = {row["name"]: row for row in read(finished / "result.json")["controllers"]}
    assert rows["never"]["episode_return"] == {"estimate": 0.0, "low": 0.0, "high": 0.0, "over_runs": False}
    found = {
        (line["controller"], int(line["run"]), int(line["instance"])): float(line["episode_return"])
        for line in table(finished)
    }
    assert len(found) == 7 * (1 + 2 + 2 + 1 + 1 + 2)
    for name, row in rows.items():
        if name == "learned":
            assert row["return_difference"] is None
            continue
        own = {run for controller, run, _ in found if controller == name}
        pairs = [
            found["learned", run, instance] - found[name, run if run in own else 0, instance]
            for run in (0, 1)
            for instance in range(7)
        ]
        assert row["return_difference"]["estimate"] == pytest.approx(sum(pairs) / len(pairs))
        assert row["return_difference"]["low"] <= row["return_difference"]["estimate"]
        assert row["return_difference"]["over_runs"]


def test_a_static_network_has_what_the_learned_controller_ended_with(finished: Path) -> None:
    lines = table(finished)
    kept = [
        {(line["run"], line["instance"]): line["kept"] for line in lines if line["controller"] == name}
        for name in ("learned", "static_final")
    ]
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_a_tuning_is_kept_and_gives_the_same_controls_again(
    config: EvaluateConfig, finished: Path, tmp_path: Path
) -> None:
    again = replace(config, tuning=str(finished / "tuning.json"), controllers=["schedule_best", "random"])
    check(again)
    evaluate(again, tmp_path)
    first, second = (
        {
            (line["controller"], line["instance"]): {name: value for name, value in line.items() if name != "run"}
            for line in table(folder)
            if line["controller"] in ("schedule_best", "random")
        }
        for folder in (finished, tmp_path)
    )
    assert first == second
    assert read(finished / "tuning.json") == read(tmp_path / "tuning.json")
    assert 0 < read(finished / "tuning.json")["spent"]["schedule_best"] <= 160


@pytest.mark.slow
def test_controls_that_a_tuning_lacks_are_tuned_within_the_same_budget(config: EvaluateConfig, tmp_path: Path) -> None:
    """Controls tuned together or in successive evaluations get equal parameters."""
    names, config = ["static_best", "schedule_best", "static_full"], replace(config, num_hosts=2, tuning_epochs=48)
    evaluate(replace(config, controllers=names), tmp_path / "together")
    parts = []
    for name in names[:2]:
        evaluate(replace(config, controllers=[name]), tmp_path / name)
        parts.append(str(tmp_path / name / "tuning.json"))
    both = replace(config, tuning=parts, controllers=names)
    check(both)
    evaluate(both, tmp_path / "both")
    assert read(tmp_path / "together/tuning.json") == read(tmp_path / "both/tuning.json")
    with pytest.raises(ValueError, match=r"static_full would be tuned within 24 .* had 48: set tuning_epochs=48"):
        check(replace(both, tuning_epochs=24))
    record = read(Path(parts[1])) | {"budget": 24}
    Path(parts[1]).write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"schedule_best/tuning\.json: its controls had 24 environment epochs each"):
        check(both)


@pytest.mark.slow
def test_an_evaluation_that_is_stopped_says_what_it_has_tuned(
    config: EvaluateConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object) -> None:
        raise Preempted(15)

    monkeypatch.setattr("esper.evaluation.run._play", stop)
    seen = replace(config, controllers=["schedule_best"], console=ConsoleMode.plain)
    with pytest.raises(Preempted):
        evaluate(seen, tmp_path)
    said = capsys.readouterr().out.splitlines()
    kept = tmp_path / "tuning.json"
    assert said[-1] == f"SIGTERM: stopped; the same command repeats the evaluation; tuning={kept} keeps what was tuned"
    with pytest.raises(Preempted):
        evaluate(replace(seen, controllers=["never"]), tmp_path / "untuned")
    assert capsys.readouterr().out.splitlines()[-1] == "SIGTERM: stopped; the same command repeats the evaluation"


@pytest.mark.slow
def test_a_run_of_training_is_the_budget_of_tuning(config: EvaluateConfig, tmp_path: Path) -> None:
    evaluate(replace(config, tuning_epochs=None, controllers=["schedule_best"]), tmp_path)
    tuning = read(tmp_path / "tuning.json")
    assert tuning["budget"] == 3 * 3 * 8  # iterations x environments x steps
    assert tuning["spent"]["schedule_best"] <= tuning["budget"]


@pytest.mark.slow
def test_other_families_may_be_held_out(config: EvaluateConfig, tmp_path: Path) -> None:
    evaluate(replace(config, controllers=["learned", "never"], families={"narrow_4": 1.0}, sampled=False), tmp_path)
    assert {line["family"] for line in table(tmp_path)} == {"narrow_4"}
    assert not (tmp_path / "tuning.json").exists()


def test_where_hosts_have_prices_what_the_learned_controller_earns_at_each_is_told(
    config: EvaluateConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priced = checkpoint(tmp_path / "run", "reward.rent_weights=[0.5,9]", "observation.price=true")
    words = {"checkpoint": priced, "controllers": ["learned", "never"], "sampled": False, "num_hosts": 4}
    evaluate(replace(config, **words, console=ConsoleMode.plain), tmp_path / "evaluation")
    said = capsys.readouterr().out
    assert [line.split()[3] for line in said.splitlines() if line.startswith("learned, at rent ")] == ["0.5:", "9:"]
    rents = read(tmp_path / "evaluation" / "result.json")["rents"]
    assert {(row["controller"], row["rent_weight"]) for row in rents} == {
        (name, price) for name in ("learned", "never") for price in (0.5, 9.0)
    }


@pytest.mark.slow
def test_of_text_bits_per_byte_stand_beside_accuracy(
    config: EvaluateConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [
        checkpoint(tmp_path / f"seed{seed}", "+preset=textbook", *SHRUNK, f"seed={seed}", words=()) for seed in (0, 1)
    ]
    names = ["random", "learned", "never"]
    evaluate(replace(config, checkpoint=text, controllers=names, sampled=False, console=ConsoleMode.plain), tmp_path)
    rows = {row["name"]: row for row in read(tmp_path / "result.json")["controllers"]}
    bits = {
        (line["controller"], int(line["run"]), int(line["instance"])): float(line["test_bits"])
        for line in table(tmp_path)
    }
    for name, row in rows.items():
        own = sorted({run for controller, run, _ in bits if controller == name})
        mean = {run: sum(bits[name, run, host] for host in range(7)) / 7 for run in own}
        never = sum(bits["never", 0, host] for host in range(7)) / 7
        assert row["test_bits"]["estimate"] == pytest.approx(sum(mean.values()) / len(mean))
        assert (row["bits_over_never"] is None) == (name == "never")
        assert (row["bits_difference"] is None) == (name == "learned")
        if name != "never":
            gain = row["bits_over_never"]
            assert gain["estimate"] == pytest.approx(row["test_bits"]["estimate"] - never)
            assert gain["low"] <= gain["estimate"] <= gain["high"]
    families = read(tmp_path / "result.json")["families"]
    assert {family["controller"] for family in families if family["test_bits"] > 0} == set(names)
    printed = capsys.readouterr().out
    assert printed.count("it − never") == 1
    assert f"{rows['never']['test_bits']['estimate']:.3f}" in printed


def test_of_images_no_file_speaks_of_bits(finished: Path) -> None:
    files = [finished / name for name in ("result.json", "controllers.csv", "families.csv", "hosts.csv")]
    assert not any("_bits" in file.read_text() or "bits_" in file.read_text() for file in files)


@pytest.mark.slow
def test_two_ranks_judge_the_same_hosts(
    config: EvaluateConfig, finished: Path, tmp_path: Path, warm_python: WarmPython
) -> None:
    words = [
        f"checkpoint=[{','.join(config.checkpoints)}]",
        f"controllers=[{','.join(CONTROLLERS)}]",
        "num_hosts=7",
        "tuning_epochs=160",
        "draws=200",
        "console=plain",
        "devices=[cpu,cpu]",
        f"hydra.run.dir={tmp_path / 'pair'}",
    ]
    done = run([warm_python.executable, "-m", "esper.evaluate", *words])
    assert done.returncode == 0, done.stderr
    assert "learned − it" in done.stdout
    keys = [
        [(line["controller"], line["run"], line["instance"], line["family"]) for line in table(folder)]
        for folder in (finished, tmp_path / "pair")
    ]
    assert keys[0] == keys[1]
    never = [float(line["episode_return"]) for line in table(tmp_path / "pair") if line["controller"] == "never"]
    assert never == [0.0] * 7


# ----------------------------------------------------------------------------------------------------------- fields

CHANGES: dict[str, dict[str, Any]] = {
    "checkpoint": {},  # one of the two runs
    "controllers": {"controllers": ["learned", "random"]},
    "num_hosts": {"num_hosts": 4},
    "split": {"split": EvaluationSplit.validation},
    "families": {"families": {"starved_0": 1.0}},
    "sampled": {"sampled": False},
    "greedy": {"greedy": Greedy.hazard},
    "tuning": {},  # what the first evaluation found
    "tuning_epochs": {"tuning_epochs": 40},
    "draws": {"draws": 40},
    "seed": {"seed": 1},
    "num_threads": {"num_threads": 2},
    "console": {"console": ConsoleMode.plain},
    "wandb": {"wandb": WandbConfig(mode=WandbMode.offline)},
}

FIELDS_ELSEWHERE = {
    "plugins": "tests/evaluation/test_evaluation_plugins.py",
    "devices": "test_two_ranks_judge_the_same_hosts",
    "name": "test_an_evaluation_is_named_by_its_entry_point_and_seed",
}
"""Fields that need more than another value, and where they are tested."""


def test_an_evaluation_is_mirrored_as_it_asks_whatever_logged_the_run() -> None:
    run = Trained(path=Path(), config=compose("telemetry.loggers=[csv,wandb]"), env_epochs=1, record={})
    own = experiment_config(EvaluateConfig(checkpoint="run"), [run])
    assert (own.telemetry.loggers, own.wandb.mode) == ([], WandbMode.disabled)


@pytest.mark.parametrize("learning", [(), ("algorithm=a2c",), ("imitation.controller=heuristic",)])
def test_what_a_run_learned_with_does_not_limit_the_hosts_to_judge_it_on(learning: tuple[str, ...]) -> None:
    run = Trained(path=Path(), config=compose(*learning), env_epochs=1, record={})
    assert experiment_config(EvaluateConfig(checkpoint="run", num_hosts=2), [run]).trainer.num_envs == 2


def test_every_field_is_changed_here_or_tested_elsewhere() -> None:
    assert set(CHANGES) | set(FIELDS_ELSEWHERE) == {item.name for item in fields(EvaluateConfig)}


def test_an_evaluation_is_named_by_its_entry_point_and_seed(esper: CommandLine) -> None:
    esper.evaluate("--cfg", "job", "--resolve", "seed=7")
    assert "name: evaluate-seed7-" in esper.out
    esper.evaluate("--cfg", "job", "--resolve", "name=mine")
    assert "name: mine" in esper.out


def traces(config: EvaluateConfig, folder: Path, printed: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return all files and output of an evaluation, except its configuration and times."""
    threads = torch.get_num_threads()
    try:
        evaluate(config, folder)
        used = torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    result = read(folder / "result.json")
    for record in (result, *result["controllers"]):
        del record["wall_seconds"]
    return {
        "result": result,
        "hosts": (folder / "hosts.csv").read_text(),
        "tuning": read(folder / "tuning.json") if (folder / "tuning.json").exists() else None,
        "files": sorted(path.name for path in folder.iterdir()),
        "threads": used,
        "printed": bool(printed.readouterr().out),
    }


@pytest.fixture(scope="module")
def brief(config: EvaluateConfig) -> EvaluateConfig:
    return replace(config, controllers=["learned", "random", "schedule_best"], num_hosts=3, tuning_epochs=80)


_before: dict[str, Any] = {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of W&B's own
@pytest.mark.parametrize("field", CHANGES)
def test_changing_a_field_changes_what_an_evaluation_leaves(
    field: str, brief: EvaluateConfig, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp(field)
    if not _before:
        _before["folder"] = folder / "before"
        _before["traces"] = traces(brief, folder / "before", capsys)
    changes = dict(CHANGES[field])
    if field == "checkpoint":
        changes["checkpoint"] = brief.checkpoints[:1]
    if field == "tuning":
        path = folder / "tuning.json"
        record = read(_before["folder"] / "tuning.json")
        record["spent"]["schedule_best"] += 1
        path.write_text(json.dumps(record))
        changes["tuning"] = str(path)
    after = traces(replace(brief, **changes), folder / "after", capsys)
    assert after != _before["traces"], f"{field} changes nothing"


@pytest.mark.slow
def test_the_same_evaluation_leaves_the_same(
    brief: EvaluateConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the test above could not fail."""
    first, second = (traces(brief, tmp_path / name, capsys) for name in ("first", "second"))
    assert first == second
