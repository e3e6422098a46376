"""The W&B mirror: its content, a stable id for each run, and no effect of its failures on a run."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import SMALL
from processes import LIMIT, run, wait_for
from wandb_file import FILE_HEADER, OfflineRun, is_whole, offline_files, records

import esper.telemetry.wandb_mirror as wandb_mirror
from esper.config import compose, to_plain
from esper.experiment.preflight import preflight
from esper.runtime.options import WandbMode
from esper.runtime.preemption import Preempted
from esper.runtime.records import read_jsonl
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import say
from esper.telemetry.events import Anomaly, StageChanged, to_record
from esper.telemetry.hub import TelemetryHub
from esper.telemetry.wandb_mirror import mirrored
from esper.training.run import train
from tests.warm import WarmPython

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

BARE = (*SMALL, "env.num_epochs=6", "evaluation.num_hosts=3", "evaluation.controllers=[learned,never]")
OFFLINE = ("wandb.mode=offline", "wandb.project=tested", "wandb.group=together", "wandb.tags=[a,b]")


@pytest.fixture
def mirror(tmp_path: Path) -> Callable[..., Any]:
    """A mirror of a run folder of its own name, offline unless told otherwise."""

    def start(name: str = "run", **changes: Any) -> Any:
        folder = RunFolder(tmp_path / name)
        folder.plots.mkdir(parents=True, exist_ok=True)
        folder.write_result({"controllers": [{"name": "learned", "val_accuracy": {"mean": 0.5, "sem": None}}]})
        fixed = {"project": "p", "entity": None, "group": "g", "tags": [], "timeout": LIMIT, "job_type": "train"}
        return mirrored(
            folder, **{**fixed, "mode": WandbMode.offline, "name": name, "config": {"name": name}, **changes}
        )

    return start


@pytest.fixture
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set up an account without a reachable server, with a short time limit, and forget it afterwards."""
    import wandb

    init = wandb.init

    def impatient(*, mode: str, settings: Any, **rest: Any) -> Any:
        if mode == "online":
            settings.init_timeout = 2.0
        return init(mode=mode, settings=settings, **rest)

    monkeypatch.setattr(wandb, "init", impatient)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.teardown()
    yield
    wandb.teardown()


def sent(folder: Path) -> list[OfflineRun]:
    """All segments; W&B's own process writes the last records a moment after a run is finished."""

    def written() -> list[Path]:
        files = offline_files(folder)
        return files if all(is_whole(path) for path in files) else []

    return [OfflineRun(path) for path in wait_for(written)]


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "mirrored"
    train(compose(*BARE, *OFFLINE, "wandb.checkpoint=true", "name=mine"), run_dir)
    return run_dir


def test_what_is_sent_equals_the_local_metrics(finished: Path) -> None:
    [run] = sent(finished)
    rows = [row for row in run.history if "charts/episodic_return" in row]
    records = read_jsonl(finished / "metrics.jsonl")
    assert [row["_step"] for row in rows] == [record["iteration"] for record in records] == [1, 2]
    for row, record in zip(rows, records, strict=True):
        own = {key: value for key, value in row.items() if not key.startswith(("_", "timeline/"))}
        assert own == {key: value for key, value in record.items() if value is not None}
    assert {(metric.glob_name, metric.step_metric) for metric in run.metrics} == {("", ""), ("*", "iteration")}


def test_a_file_that_is_still_written_has_the_records_up_to_there(finished: Path, tmp_path: Path) -> None:
    sent(finished)
    [path] = offline_files(finished)
    data, whole = path.read_bytes(), [record.SerializeToString() for record in records(path)]
    numbers = []
    for length in [*range(len(data) - 200, len(data)), *range(FILE_HEADER, len(data), 997)]:
        cut = tmp_path / "cut.wandb"
        cut.write_bytes(data[:length])
        found = [record.SerializeToString() for record in records(cut)]
        assert found == whole[: len(found)]
        numbers.append(len(found))
    assert min(numbers) == 0
    assert max(numbers) < len(whole)


def test_a_run_is_sent_with_its_plain_configuration_and_where_it_belongs(finished: Path) -> None:
    [run] = sent(finished)
    config = compose(*BARE, *OFFLINE, "wandb.checkpoint=true", "name=mine")
    plain = to_plain(config)
    own = {key: value for key, value in run.config.items() if key != "_wandb"}
    assert own == plain
    assert (run.run.project, run.run.run_group, run.run.job_type) == ("tested", "together", "train")
    assert (run.run.display_name, list(run.run.tags), run.exit_codes) == ("mine", ["a", "b"], [0])
    assert run.run.run_id.startswith("mine-")


def test_lifecycle_timeline_plots_and_numbers_are_sent_at_the_end(finished: Path) -> None:
    [run] = sent(finished)
    last = {key.rpartition("/")[0] for key in run.history[-1]}
    tables = {"closing/controllers", "lifecycle/transitions", "lifecycle/episodes", "timeline/last_iteration"}
    assert tables | {f"plots/{path.stem}" for path in (finished / "plots").iterdir()} <= last
    result = json.loads((finished / "result.json").read_text())
    for record in result["controllers"]:
        assert run.summary[f"closing/{record['name']}/test_accuracy"] == record["test_accuracy"]["mean"]
        assert run.summary[f"closing/{record['name']}/test_accuracy_sem"] == record["test_accuracy"]["sem"]
    for pair, difference in result["return_differences"].items():
        assert run.summary[f"closing/difference/{pair}"] == difference["mean"]
        assert run.summary[f"closing/difference/{pair}_sem"] == difference["sem"]
    [transitions] = finished.glob("wandb/offline-run-*/files/media/table/lifecycle/transitions*")
    table = json.loads(transitions.read_text())
    events = read_jsonl(finished / "events.jsonl")
    assert sum(row[-1] for row in table["data"]) == sum(event["kind"] == "stage_changed" for event in events)


def test_the_summary_has_the_best_iteration_beside_the_last(finished: Path) -> None:
    [run] = sent(finished)
    returns = {
        record["iteration"]: record["charts/episodic_return"] for record in read_jsonl(finished / "metrics.jsonl")
    }
    assert run.summary["charts/episodic_return"] == returns[2]
    assert run.summary["best/charts/episodic_return"] == max(returns.values())
    assert returns[run.summary["best/iteration"]] == max(returns.values())


def test_a_table_of_stage_changes_is_sent_whenever_a_checkpoint_is_written(
    mirror: Callable[..., Any], tmp_path: Path
) -> None:
    where = {"environment": 0, "epoch": 1, "slot": "r0c0", "blueprint": "norm"}
    with mirror(timeline_every=2) as loggers, TelemetryHub(loggers) as hub:
        for iteration in (1, 2, 3):
            hub.emit(StageChanged(iteration=iteration, before="DORMANT", after="GERMINATED", **where))
            hub.log_metrics(iteration, {"x": 1.0})
    [run] = sent(tmp_path / "run")
    assert [any(key.startswith("timeline/iteration") for key in row) for row in run.history[:3]] == [False, True, False]
    [file] = tmp_path.glob("run/wandb/offline-run-*/files/media/table/timeline/iteration*")
    assert [row[0] for row in json.loads(file.read_text())["data"]] == [2]


def test_anomalies_are_counted_also_those_before_a_resume_and_the_first_is_an_alert(
    mirror: Callable[..., Any], tmp_path: Path
) -> None:
    known = Anomaly(iteration=1, name="value_collapse", message="low", value=-2.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text(json.dumps(to_record(known)) + "\n")
    with mirror() as loggers, TelemetryHub(loggers) as hub:
        hub.emit(replace(known, iteration=2))
        for iteration in (2, 3):
            hub.emit(Anomaly(iteration=iteration, name="gradient_norm", message="norm 200 > 100", value=200.0))
        hub.log_metrics(3, {"x": 1.0})
    [run] = sent(tmp_path / "run")
    assert (run.summary["anomalies/value_collapse"], run.summary["anomalies/gradient_norm"]) == (2, 2)
    assert [(alert.title, alert.text) for alert in run.alerts] == [
        ("gradient_norm in run", "iteration 2: norm 200 > 100")
    ]


def test_what_a_run_prints_is_its_log(mirror: Callable[..., Any], tmp_path: Path) -> None:
    with mirror():
        say("printed meanwhile")
    say("printed later")
    [run] = sent(tmp_path / "run")
    assert "printed meanwhile" in run.printed
    assert "printed later" not in run.printed


def test_a_run_that_is_sent_tells_its_address_and_one_that_is_not_how_to(
    mirror: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with mirror(tell=told.append):
        assert told == []
    [folder] = (tmp_path / "run").glob("wandb/offline-run-*")
    assert told == [f"W&B: wandb sync {folder} sends this run"]
    told.clear()
    monkeypatch.setattr("wandb.Run.offline", property(lambda _: False))
    monkeypatch.setattr("wandb.Run.url", property(lambda _: "https://example.org/run"))
    with mirror(tell=told.append):
        pass
    assert told == ["W&B run https://example.org/run"]


def test_the_checkpoint_goes_along_when_asked(finished: Path) -> None:
    [run] = sent(finished)
    [model] = [artifact for artifact in run.artifacts if artifact.type == "model"]
    [entry] = model.manifest.contents
    assert (entry.path, entry.size) == ("last.pt", (finished / "checkpoints" / "last.pt").stat().st_size)


@pytest.mark.slow
def test_a_disabled_mirror_does_not_even_import_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from esper.config import compose; from esper.training.run import train;"
        f"train(compose(*{(*BARE, 'telemetry.plots=false')!r}), Path({str(tmp_path / 'run')!r}));"
        "assert 'wandb' not in sys.modules"
    )
    run([sys.executable, "-c", script], check=True)
    assert not (tmp_path / "run" / "wandb").exists()


@pytest.mark.slow
def test_a_fault_of_the_mirror_costs_the_run_nothing_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("mirror broken")

    monkeypatch.setattr(wandb_mirror.WandbLogger, "metrics", break_down)
    train(compose(*BARE, *OFFLINE, "telemetry.plots=false"), tmp_path)
    assert [record["iteration"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    assert capsys.readouterr().err.count("mirror broken") == 1


# ------------------------------------------------------------------------------------------------------ life and death


def test_three_runs_of_one_process_have_three_ids_and_their_own_configurations(
    mirror: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        with mirror(name) as loggers, TelemetryHub(loggers) as hub:
            hub.log_metrics(1, {"x": 1.0})
    runs = {name: sent(tmp_path / name)[0] for name in ("one", "two", "three")}
    assert len({run.run.run_id for run in runs.values()}) == 3
    assert all(run.config["name"] == name and run.exit_codes == [0] for name, run in runs.items())


def test_a_resumed_run_goes_on_under_its_id(mirror: Callable[..., Any], tmp_path: Path) -> None:
    def interrupted() -> None:
        with mirror() as loggers, TelemetryHub(loggers) as hub:
            hub.log_metrics(1, {"x": 1.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with mirror() as loggers, TelemetryHub(loggers) as hub:
        hub.log_metrics(2, {"x": 2.0})
    first, second = sorted(sent(tmp_path / "run"), key=lambda run: run.history[0]["_step"])
    assert first.run.run_id == second.run.run_id
    assert [[row["_step"] for row in run.history] for run in (first, second)] == [[1], [2, 3]]
    assert (first.preempting, first.exit_codes, second.preempting, second.exit_codes) == (True, [1], False, [0])


@pytest.mark.slow
def test_after_a_stop_in_the_comparison_closing_tables_come_after_the_last_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*BARE, *OFFLINE, "telemetry.plots=false")

    def stopped(*_: object, **__: object) -> None:
        raise Preempted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("esper.training.run.compare", stopped)
        with pytest.raises(Preempted):
            train(compose(*words), tmp_path)
    train(replace(compose(*words), resume="auto"), tmp_path)
    first, second = sorted(sent(tmp_path), key=lambda run: run.history[0]["_step"])
    assert [row["_step"] for row in first.history] == [1, 2]
    [closing] = second.history
    assert (closing["_step"], closing["iteration"]) == (3, 2)
    assert "closing/controllers" in {key.rpartition("/")[0] for key in closing}


def test_a_crash_is_a_failed_run(mirror: Callable[..., Any], tmp_path: Path) -> None:
    def crash() -> None:
        with mirror() as loggers, TelemetryHub(loggers) as hub:
            hub.log_metrics(1, {"x": 1.0, "y": None, "z": math.inf})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    [run] = sent(tmp_path / "run")
    assert (run.exit_codes, run.preempting) == ([1], False)
    assert {key for key in run.history[0] if not key.startswith("_")} == {"iteration", "x"}


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_makes_it_an_offline_run(
    mirror: Callable[..., Any], tmp_path: Path, nobody_there: None
) -> None:
    warnings: list[str] = []
    with mirror(mode=WandbMode.online, warn=warnings.append) as loggers, TelemetryHub(loggers) as hub:
        hub.log_metrics(1, {"x": 1.0})
    [run] = sent(tmp_path / "run")
    assert (run.history[0]["x"], run.exit_codes) == (1.0, [0])
    [warning] = warnings
    assert "cannot be reached" in warning
    assert "wandb sync" in warning


def test_a_mirror_that_cannot_start_at_all_leaves_the_run_alone(
    mirror: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def refuse(**_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(wandb, "init", refuse)
    warnings: list[str] = []
    with mirror(warn=warnings.append) as loggers:
        assert loggers == []
    assert len(warnings) == 1
    assert "no space left" in warnings[0]


@pytest.mark.parametrize("fault", ["its folder is a file", "its library is broken"])
def test_whatever_keeps_a_mirror_from_being_made_costs_the_run_nothing(
    mirror: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    begun = mirror(warn=(warnings := []).append)
    if fault == "its folder is a file":
        (tmp_path / "run" / "wandb").touch()
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    with begun as loggers:
        assert loggers == []
    assert len(warnings) == 1
    assert "this run is not mirrored" in warnings[0]


def test_closing_tables_that_cannot_be_sent_are_one_warning_and_the_run_is_finished(
    mirror: Callable[..., Any], tmp_path: Path
) -> None:
    warnings: list[str] = []
    with mirror(warn=warnings.append):
        (tmp_path / "run" / "result.json").unlink()
    [run] = sent(tmp_path / "run")
    assert run.exit_codes == [0]
    assert len(warnings) == 1
    assert "result.json" in warnings[0]


@pytest.mark.slow
def test_online_without_an_account_is_refused_before_anything_starts(tmp_path: Path, warm_python: WarmPython) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = run(
        [warm_python.executable, "-m", "esper.train", "+preset=smoke", "wandb.mode=online"],
        cwd=tmp_path,
        env=environment | {"NETRC": str(tmp_path / "netrc"), "WANDB_BASE_URL": "http://127.0.0.1:9"},
    )
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)  # the line that a run begins with
    assert re.fullmatch(
        r"error: wandb\.mode: 'online' needs an account.* wandb login .*disabled, offline\n", done.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("", WandbMode.disabled),
        ("wandb.mode=offline", WandbMode.offline),
        ("telemetry.loggers=[wandb]", WandbMode.online),
        ("telemetry.loggers=[csv,wandb] wandb.mode=offline", WandbMode.offline),
    ],
)
def test_it_is_asked_for_among_the_loggers_or_by_its_mode(words: str, mode: WandbMode) -> None:
    assert compose(*words.split()).wandb.mode is mode


def test_a_missing_package_is_refused_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.telemetry.loggers.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"^wandb\.mode=offline needs the package wandb: pip install '\.\[wandb\]'$"):
        preflight(compose("+preset=smoke", "wandb.mode=offline"))
    with pytest.raises(
        ValueError, match=r"^telemetry\.loggers: tensorboard needs .*: pip install '\.\[tensorboard\]'$"
    ):
        preflight(compose("+preset=smoke", "telemetry.loggers=[tensorboard]"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "telemetry.loggers=[wandb] wandb.mode=disabled",
            "telemetry.loggers=['wandb'] names wandb, but wandb.mode is disabled",
        ),
        ("wandb.project=''", "wandb.project must be a name, not empty and without '/', got ''"),
        ("wandb.entity=a/b", "wandb.entity must be a name, not empty and without '/', got 'a/b'"),
        ("wandb.tags=[a,a]", "wandb.tags names a more than once"),
        ("wandb.timeout=0", "wandb.timeout must be above 0, got 0"),
    ],
)
def test_where_it_goes_is_checked(words: str, message: str) -> None:
    with pytest.raises(Exception) as caught:
        compose(*words.split())
    assert message in str(caught.value)


def test_by_default_runs_are_grouped_by_task_and_say_so() -> None:
    assert compose().wandb.group == "digits"
    assert compose("wandb.group=other").wandb.group == "other"


def test_the_command_of_the_sweep_template_composes() -> None:
    """W&B's agent replaces its placeholders by what it has drawn."""
    template = yaml.safe_load((Path(__file__).parents[2] / "docs" / "wandb_sweep.yaml").read_text())
    drawn = {key: spec.get("values", [spec.get("min")])[0] for key, spec in template["parameters"].items()}
    words = [word for word in template["command"] if word.startswith("${") or "=" in word]
    assert template["command"][:4] == ["${env}", "python", "-m", "esper.train"]
    assert words.pop() == "${args_no_hyphens}"
    config = compose(*words[1:], *(f"{key}={value}" for key, value in drawn.items()))
    assert (config.wandb.mode, config.ppo.ent_coef, config.slots.num_slots) == ("online", 0.003, 1)
    assert template["metric"]["name"] == "charts/episodic_return"
