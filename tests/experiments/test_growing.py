"""Studies of growth: from nothing to tables and figures, without repeating finished parts."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CalledProcessError
from threading import Event
from typing import Any

import pytest
from processes import LIMIT

from esper.config import compose
from esper.config.plugins import activate
from esper.controllers import CONTROLLERS
from esper.growth.actions import HEADS
from experiments.fashion_pays.reproduce import STUDY as FASHION
from experiments.growing import Study, family_table, from_command_line, reproduce, seed_table, train_and_tune
from experiments.growth_pays.reproduce import PAGES, short_table
from experiments.growth_pays.reproduce import STUDY as PAYS
from experiments.jobs import Job
from experiments.natural.reproduce import STUDY as NATURAL
from experiments.one_slot.reproduce import STUDY as ONE_SLOT
from experiments.redraw import redraw
from experiments.scaffold.reproduce import STUDY as SCAFFOLD
from experiments.surrogate.growth import PRESET
from experiments.surrogate.learner import recipe
from experiments.surrogate.study import GROUPS
from experiments.tables import between_markers

PARTS = ("facts", "table", "families", "seeds", "unseen", "unseen_families")
TINY = Study(
    name="tiny",
    words=("+preset=smoke", "env.mapping=matmul", "evaluation.num_hosts=2"),
    tuned=(("schedule_best",), ("heuristic",)),
    rivals=("learned", "schedule_best", "heuristic", "never"),
    beside=("schedule_best",),
    unseen=("label_noise",),
    unseen_rivals=("learned", "never"),
    unseen_beside=("never",),
)


@pytest.mark.slow
def test_a_study_is_made_from_nothing_and_nothing_of_it_twice(
    warm_children: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    TINY.page.parent.mkdir(parents=True)
    TINY.page.write_text("\n".join(f"{name}:\n<!-- {name}: begin -->\n<!-- {name}: end -->" for name in PARTS))

    def make() -> dict[str, Any]:
        return reproduce(TINY, seeds=1, at_once=2, devices="cpu", hosts=4, tuning_epochs=64)

    result = make()
    text = TINY.page.read_text()
    assert {row["name"] for row in result["controllers"]} == {*TINY.rivals, "learned_sampled"}
    assert "64 environment epochs for each tuned control but `schedule_per_family` (64 for training)" in text
    assert text.count("| learned |") == 4, "a row and a head for seen and for unseen families"
    assert "| 0 |" in text
    pictures = {"learning_curves.png", "frontier.png", "choices_learned.png"}
    drawn = {path.name: path.read_bytes() for path in redraw(TINY.page.parent)}
    assert set(drawn) == pictures - {"choices_learned.png"}
    assert make() == result
    assert {name: TINY.page.with_name(name).read_bytes() for name in drawn} == drawn, "tables suffice for pictures"
    numbers = {"controllers.csv", "hosts.csv", "curves.csv", "unseen_controllers.csv", "unseen_hosts.csv"}
    assert pictures | numbers <= {path.name for path in TINY.page.parent.iterdir()}
    made = {path: path.stat().st_mtime_ns for path in TINY.runs.rglob("result.json")}
    assert len(made) == 5, "a run, two searches, two evaluations"
    assert TINY.page.read_text() == text
    assert {path: path.stat().st_mtime_ns for path in TINY.runs.rglob("result.json")} == made


@pytest.mark.parametrize("study", [PAYS, FASHION, SCAFFOLD, NATURAL, ONE_SLOT], ids=lambda study: study.name)
def test_a_study_can_start_and_judges_all_that_it_tunes(study: Study) -> None:
    """A preset may change under a study, whose words then contradict it."""
    compose(*study.job(0).words)
    assert {name for names in study.tuned for name in names} <= set(study.rivals)
    activate(study.plugins)
    assert set(study.rivals) <= set(CONTROLLERS)
    activate(())


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_short_tables_have_the_numbers_of_the_study(page: Path) -> None:
    root = Path(__file__).parents[2]
    rows: list[dict[str, Any]] = []
    with (root / PAYS.page).with_name("controllers.csv").open() as file:
        for row in csv.DictReader(file):
            bounds = ("episode_return", "return_difference", "test_accuracy", "added_parameters")
            found = {name: _interval(row, name) for name in bounds}
            rows.append({"name": row["name"], **found})
    shown = short_table({"controllers": rows}, PAGES[page])
    text = (root / page).read_text(encoding="utf-8")
    assert between_markers(text, PAYS.name, shown) == text


def _interval(row: dict[str, str], name: str) -> dict[str, float] | None:
    parts = {"estimate": name, "low": f"{name}_low", "high": f"{name}_high"}
    return {part: float(row[column]) for part, column in parts.items()} if row[name] else None


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), [(group, name) for group, settings in GROUPS.items() for name in settings])
def test_a_setting_of_the_surrogate_can_start(group: str, name: str) -> None:
    recipe(*GROUPS[group][name], preset=PRESET)


def _hosts(folder: Path, kept: Sequence[str]) -> None:
    rows = [f"0,learned,starved_2,{number},1.0,0.5,10,{name}" for number, name in enumerate(kept)]
    heads = "run,controller,family,instance,episode_return,test_accuracy,added_parameters,kept"
    (folder / "hosts.csv").write_text("\n".join([heads, *rows, ""]))


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (["r0c2:norm", "r0c2:conv_light", "r0c1:norm"], "starved_2 2"),
        (["r0c1:norm+r0c2:norm", "r0c2:conv_light+r0c1:norm", "r0c2:norm"], "starved_2 1+2"),
        (["", "", "r0c2:norm"], "starved_2 –"),
    ],
)
def test_the_slots_kept_most_often(tmp_path: Path, kept: list[str], shown: str) -> None:
    _hosts(tmp_path, kept)
    record = {f"losses/entropy/{head}": 0.5 for head in HEADS}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record | {"losses/explained_variance": None}) + "\n")
    last = seed_table([Job(tmp_path, ())], tmp_path).splitlines()[-1]
    assert f"| {shown} |" in last
    assert "| – | op 0.50, slot 0.50" in last
    assert "alpha_curve 0.50" in last


def test_a_row_for_each_family() -> None:
    rows = [
        {"controller": name, "family": family, "episode_return": 1.0, "kept": {"nothing": 1.0}}
        for name in ("learned", "never")
        for family in ("b", "a")
    ]
    assert family_table({"families": rows}, ["never"]).splitlines() == [
        "| family | learned | never | what learned kept |",
        "|---|---|---|---|",
        "| a | +1.0 | +1.0 | nothing 100 % |",
        "| b | +1.0 | +1.0 | nothing 100 % |",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "argument --seeds: must be a number of at least 1, got '0'"),
        (["--at-once", "-1"], "argument --at-once: must be a number of at least 1, got '-1'"),
        (["--hosts", "many"], "argument --hosts: must be a number of at least 1, got 'many'"),
        (["--tuning-epochs", "0"], "argument --tuning-epochs: must be a number of at least 1, got '0'; or as-training"),
    ],
)
def test_what_a_study_cannot_do_is_refused_at_once(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", *words])
    with pytest.raises(SystemExit):
        from_command_line(TINY)
    assert message in capsys.readouterr().err


def test_after_a_failure_nothing_more_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cancelled = [], Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait)

    class Fake(Job):
        def run(self) -> None:
            begun.append(self.folder.name)
            if self.folder.name == "first":
                raise CalledProcessError(1, ["train"])
            cancelled.wait(LIMIT)

    monkeypatch.setattr("experiments.growing.ThreadPoolExecutor", Pool)

    monkeypatch.setattr("experiments.growing.evaluate", lambda folder, *rest: begun.append(folder.name) or folder)
    jobs = [Fake(Path(name), ()) for name in ("first", "second", "third")]
    with pytest.raises(CalledProcessError):
        train_and_tune(TINY, jobs, 2, None, at_once=1)
    assert "third" not in begun
    assert not [name for name in begun if name.startswith("tuning")]
