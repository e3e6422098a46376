"""``python -m esper.report``: one page that needs nothing else, whatever was found, and clear errors."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from run_folders import EPISODE, lines, make_run, result

from esper.report.cli import main
from esper.report.compose import gather
from esper.report.timelines import timelines

VOID = {"meta", "link", "br", "img", "input", "path", "use", "rect", "circle"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("src", "href", "xlink:href", "srcset", "data"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def sweep(root: Path, seeds: int = 3) -> Path:
    """Entropy coefficient by learning rate, returns that tell which is which."""
    for coef in (0.01, 0.03):
        for lr in (0.001, 0.002, 0.005):
            for seed in range(seeds):
                gain = 100 * coef + 1000 * lr + 0.1 * seed
                make_run(root / f"{coef}-{lr}-{seed}", seed, gain=gain, ppo__ent_coef=coef, ppo__lr=lr)
    return root


def report(*words: str | Path) -> int:
    return main([str(word) for word in words])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a sweep of 2 by 3 by 3 seeds, with a failed, a preempted, a running and an empty run."""
    root = sweep(tmp_path_factory.mktemp("sweep") / "study")
    for name, state in (("0.01-0.001-0", "failed"), ("0.01-0.002-0", "preempted"), ("0.01-0.005-0", "running")):
        run = root / name
        (run / "result.json").unlink()
        status = {"state": state, "host": "elsewhere", "pid": 1, "traceback": "Traceback:\nOSError: <disk> full"}
        (run / "status.json").write_text(json.dumps(status))
    empty = root / "0.03-0.001-0"
    for name in ("status.json", "metrics.jsonl", "events.jsonl", "result.json"):
        (empty / name).unlink()
    assert report(root) == 0
    return root / "report"


def test_the_page_is_sound_and_needs_no_network(made: Path) -> None:
    page = Page((made / "index.html").read_text())
    assert len(page.ids) == len(set(page.ids))
    assert page.links
    for link in page.links:
        assert link.startswith(("#", "data:"))
        assert not link.startswith("#") or link[1:] in page.ids
    text = (made / "index.html").read_text()
    assert not re.search(r"""(url\(|@import|src=)["']?(https?:|//)""", text)
    for used in re.findall(r"url\(#([^)]*)\)", text):
        assert used in page.ids


def test_the_page_takes_its_colours_from_the_reader(made: Path) -> None:
    text = (made / "index.html").read_text()
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert text.count("<svg") >= 7
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[:1]
    assert "prefers-color-scheme: dark" in style
    for variable in set(re.findall(r"var\((--[a-z]+)\)", svgs)):
        assert f"{variable}:" in style
    assert "#333333" not in svgs
    assert "DejaVu" not in svgs  # the page's font instead


def test_every_state_is_counted_and_named(made: Path) -> None:
    text = Page((made / "index.html").read_text()).text
    for words in (
        "1 of 18 runs failed: 0.01-0.001-0",
        "1 of 18 runs preempted: 0.01-0.002-0",
        "1 of 18 runs still running: 0.01-0.005-0",
        "1 of 18 runs empty: nothing was recorded: 0.03-0.001-0",
        "OSError: <disk> full",
        "slots.num_slots=3",
    ):
        assert words in text


def test_numbers_on_the_page_are_those_of_the_runs(made: Path) -> None:
    table = rows(made / "configurations.csv")
    assert [(row["ppo.ent_coef"], row["ppo.lr"]) for row in table] == [
        (coef, lr) for coef in ("0.01", "0.03") for lr in ("0.001", "0.002", "0.005")
    ]
    first, *_, last = table
    assert (first["num_runs"], first["num_finished"], first["states"]) == ("3", "2", "1 failed, 2 finished")
    assert float(first["held_out_return"]) == pytest.approx(2.15)  # of seeds 1 and 2
    assert first["held_out_return_seeds"] == "2"
    assert float(first["training_return"]) == pytest.approx(2.1)  # the failed run got that far
    assert float(last["held_out_return"]) == pytest.approx(8.1)
    assert float(last["held_out_return_low"]) < 8.1 < float(last["held_out_return_high"])
    assert "+8.10 ± 0.25" in Page((made / "index.html").read_text()).text
    assert len(rows(made / "runs.csv")) == 18
    curves = rows(made / "curves.csv")
    assert {row["metric"] for row in curves} == {"charts/episodic_return", "charts/final_val_accuracy"}
    assert {row["env_epochs"] for row in curves if row["iteration"] == "4"} == {"80.0"}


def test_rows_of_plots_are_full(made: Path) -> None:
    """A plot without a whole row has another beside it."""
    found = re.findall(r"<figure( class=\"wide\")?>", (made / "index.html").read_text())
    rows_between = "".join("w" if wide else "." for wide in found).split("w")
    assert [len(between) % 2 for between in rows_between] == [0] * len(rows_between)
    assert len(rows_between) > 3  # scores, heat map and timelines


def test_there_is_a_png_of_every_plot(made: Path) -> None:
    names = {path.name for path in (made / "plots").iterdir()}
    assert {
        "learning_curves.png", "accuracy_curves.png", "scores.png", "heat_map.png",
        "ops_over_time.png", "ops_at_end.png", "stages_over_time.png", "stages_at_end.png", "timeline_1.png",
    } <= names  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (made / "plots").iterdir())


def test_a_report_in_the_folder_is_no_run_and_may_be_replaced(made: Path) -> None:
    again = gather([made.parent], statistic="mean")
    assert sum(len(item.runs) for item in again.sweep.configurations) == 18
    assert report(made.parent, "--out", made, "--score", "nonsense") == 2  # refused for that, not for the folder


def test_a_single_run_has_no_interval_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(make_run(tmp_path / "run"), "--out", tmp_path / "out", "--statistic", "iqm") == 0
    printed = capsys.readouterr().out
    assert "there is one run seed only, so no interval" in printed
    assert "±" not in printed.partition("note:")[0]
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert "there is one run seed only" in page.text
    assert "Interquartile mean" in page.text
    (row,) = rows(tmp_path / "out" / "configurations.csv")
    assert (row["held_out_return"], row["held_out_return_low"]) == ("1.0", "")


def test_the_page_of_one_run_begins_with_its_rivals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    result["controllers"] = [
        {"name": "learned", "episode_return": {"mean": 1.5, "sem": 0.25}, "test_accuracy": {"mean": 0.62, "sem": None}},
        {"name": "heuristic", "episode_return": {"mean": -0.001, "sem": 0.5}},
    ]
    result["return_differences"] = {"learned - heuristic": {"mean": 1.501, "sem": 0.4}}
    (run / "result.json").write_text(json.dumps(result))
    assert report(run, "--out", tmp_path / "out") == 0
    text = " ".join(Page((tmp_path / "out" / "index.html").read_text()).text.split())
    table = text[text.index("The learned controller and its rivals") : text.index("Results by configuration")]
    for cell in ("+1.50 ± 0.25", "62.0", "+0.00 ± 0.50", "+1.50 ± 0.40"):
        assert cell in table


@pytest.mark.slow
def test_fifty_runs_of_fifty_configurations(tmp_path: Path) -> None:
    for number in range(50):
        make_run(tmp_path / "runs" / f"run-{number}", gain=number / 10, trainer__num_envs=number + 1)
    assert report(tmp_path / "runs") == 0
    text = Page((tmp_path / "runs" / "report" / "index.html").read_text()).text
    assert "learning curves show the 8 configurations of highest held-out return" in text
    assert "best held-out return: num_envs=50: not clearly better than any other" in text
    assert len(rows(tmp_path / "runs" / "report" / "configurations.csv")) == 50


@pytest.mark.slow
def test_runs_of_different_presets_lie_side_by_side(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "one")
    more: dict[str, Any] = {"task__name": "digits_deep", "env__num_epochs": 9, "trainer__num_envs": 8}
    make_run(tmp_path / "b" / "two", **more)
    assert report(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out") == 0
    text = Page((tmp_path / "out" / "index.html").read_text()).text
    assert "a and b" in text
    assert "Together with task.name changed: env.num_epochs , trainer.num_envs ." in text


def test_nothing_measured_at_all_is_a_report_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a", state="running", iterations=0)
    make_run(tmp_path / "runs" / "b", 1, state="running", values=lambda iteration: None)
    assert report(tmp_path / "runs") == 0
    assert "2 of 2 runs still running: a, b" in capsys.readouterr().out
    text = Page((tmp_path / "runs" / "report" / "index.html").read_text()).text
    assert "nothing measured yet" in text


def test_without_a_finished_run_training_returns_are_ranked(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", state="preempted", gain=4.0)
    found = gather([tmp_path / "runs"], statistic="mean")
    assert found.score.name == "training_return"
    assert any("no run has a held-out return yet" in note for note in found.notes)
    assert gather([tmp_path / "runs"], statistic="mean", score="val_accuracy").score.name == "val_accuracy"


def test_the_reason_of_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "s" / "a", 0)
    reason = "slots.num_slots=9 asks for more places than there are"
    (tmp_path / "s" / "b").mkdir()
    status = {"state": "failed", "overrides": ["slots.num_slots=9"], "traceback": reason}
    (tmp_path / "s" / "b" / "status.json").write_text(json.dumps(status))
    assert report(tmp_path / "s") == 0
    printed = capsys.readouterr().out
    assert f"note: 1 of 2 runs refused (b): {reason}" in printed
    assert "num_slots=9" in printed
    text = (tmp_path / "s" / "report" / "index.html").read_text()
    assert "missing or empty" not in printed + text
    assert "Traceback" not in text


def test_names_and_values_with_markup_in_them_stay_text(tmp_path: Path) -> None:
    for coef in ("<b>1</b>", '$x_1$ & "y"'):
        make_run(tmp_path / f"<i>{len(coef)}", ppo__ent_coef=coef)
    assert report(tmp_path, "--out", tmp_path / "out", "--title", "<script>alert(1)</script>") == 0
    text = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in text
    assert "<b>1</b>" not in text
    assert "<i>" not in text
    assert "<script>alert(1)</script>" in Page(text).text


def test_an_evaluation_is_shown_with_its_intervals(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "evaluation")
    (path / "config.yaml").write_text("checkpoint: [a]\n")
    interval = {"estimate": 2.5, "low": 1.25, "high": 3.75, "over_runs": True}
    controllers = [{"name": "learned", "episode_return": interval}, {"name": "never", "episode_return": None}]
    controllers[0] |= {"num_fossilized": 0.0, "flops_ratio": interval}
    (path / "result.json").write_text(json.dumps({"controllers": controllers}))
    (path / "plots").mkdir(exist_ok=True)
    (path / "plots" / "frontier.png").write_bytes(b"\x89PNG")
    assert report(tmp_path / "runs") == 0
    page = (tmp_path / "runs" / "report" / "index.html").read_text()
    text = Page(page).text
    for words in ("1 evaluation", "+2.50 [+1.25, +3.75]", "modules kept", "training FLOPs / host alone"):
        assert words in " ".join(text.split())
    assert "Swept" not in text, "there are no runs"
    assert page.count("data:image/png;base64,") == 1


@pytest.mark.slow
def test_intervals_of_accuracies_stay_within_0_and_100_percent_and_others_do_not(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "evaluation")
    (path / "config.yaml").write_text("checkpoint: [a]\n")
    interval = {"estimate": 0.206, "low": -0.057, "high": 1.488, "over_runs": True}
    controllers = [{"name": "learned", "val_accuracy": interval, "episode_return": interval}]
    (path / "result.json").write_text(json.dumps({"controllers": controllers}))
    assert report(tmp_path / "runs") == 0
    text = Page((tmp_path / "runs" / "report" / "index.html").read_text()).text
    assert "20.6 [0.0, 100.0]" in text
    assert "+0.21 [-0.06, +1.49]" in text


def test_bits_per_byte_are_shown_of_text_and_of_nothing_else(tmp_path: Path) -> None:
    learned = result()["controllers"][0]
    of_text = {**learned, "val_bits": {"mean": 3.125, "sem": 0.1}, "test_bits": {"mean": 3.25, "sem": 0.1}}
    for name, row in (("image", learned), ("text", of_text)):
        (make_run(tmp_path / name / "run") / "result.json").write_text(json.dumps({"controllers": [row]}))
        judged = make_run(tmp_path / name / "judged")
        (judged / "config.yaml").write_text("checkpoint: [a]\n")
        bits = {"test_bits": {"estimate": 2.5, "low": 2.25, "high": 2.75}} if name == "text" else {"test_bits": None}
        (judged / "result.json").write_text(json.dumps({"controllers": [{"name": "learned", **bits}]}))
        assert report(tmp_path / name) == 0
    shown = {name: Page((tmp_path / name / "report" / "index.html").read_text()).text for name in ("image", "text")}
    assert "bits per byte" not in shown["image"]
    for words in ("val bits per byte", "3.125", "test bits per byte", "3.250", "2.500 [2.250, 2.750]"):
        assert words in shown["text"]
    [row] = rows(tmp_path / "text" / "report" / "configurations.csv")
    assert float(row["test_bits"]) == 3.25


def test_a_picture_of_a_run_fits_a_phone_and_a_click_enlarges_it_without_scripts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", iterations=0)
    (run / "plots").mkdir()
    (run / "plots" / "slot_timeline_learned.png").write_bytes(b"\x89PNG")
    assert report(run) == 0
    text = (run / "report" / "index.html").read_text()
    assert re.search(r"<label[^>]*><input type=\"checkbox\"[^>]*><img [^>]*></label>", text)
    assert "A held-out host under the controller of a" in Page(text).words
    assert re.findall(r"(?m)^ *figure img \{[^}]*[ -](width: [^;]*);", text) == ["width: 100%"]
    assert re.search(r"input:checked \+ img \{[^}]*max-width: none;", text)


@pytest.mark.slow
def test_slot_timelines_come_from_events_unless_the_run_drew_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    assert report(tmp_path / "runs") == 0
    page = tmp_path / "runs" / "report" / "index.html"
    text = Page(page.read_text()).text
    assert "the last whole episode of environment 0 of a" in text
    assert "norm" in text
    assert "fossilized" in text
    (run / "plots").mkdir()
    (run / "plots" / "slot_timeline_learned.png").write_bytes(b"\x89PNG")
    (run / "events.jsonl").write_text(json.dumps(EPISODE[0]) + "\n{")
    assert report(tmp_path / "runs") == 0
    assert 'src="data:image/png;base64,iVBORw=="' in page.read_text()


def test_timelines_from_events_show_the_host_that_most_runs_have(tmp_path: Path) -> None:
    """Only host 7 is in both runs, although others have kept modules."""
    for coef, kept_on, other in ((0.01, 3, 7), (0.03, 4, 7)):
        path = make_run(tmp_path / f"{coef}", ppo__ent_coef=coef)
        ends = [
            {"kind": "episode_ended", "environment": place, "instance": host, "family": "intact"}
            for place, host in enumerate((kept_on, other))
        ]
        moved = {**EPISODE[0], "environment": 1}
        (path / "events.jsonl").write_text(lines([*EPISODE[:-1], moved, *ends]))
    found = gather([tmp_path], statistic="mean")
    shown = timelines(found.sweep.configurations, found.score)
    assert [item.caption for item in shown] == [
        "Configuration ent_coef=0.01: host 7 (intact), the last whole episode of environment 1 of 0.01",
        "Configuration ent_coef=0.03: host 7 (intact), the last whole episode of environment 1 of 0.03",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder nowhere"),
        (["{here}/file"], "is a file: give the folder of a run"),
        (["{here}/bare"], "no run in {here}/bare: a run folder has status.json"),
        (
            ["{here}/run", "--statistic", "median"],
            "--statistic: unknown 'median' (did you mean 'mean'?); choose from mean, iqm",
        ),
        (["{here}/run", "--score", "return"], "choose from held_out_return, training_return, test_accuracy"),
        (["{here}/run", "{here}/bare"], "--out is needed for more than one folder"),
        (["{here}/run", "--out", "{here}/run"], "is a run folder: choose another one, such as {here}/run/report"),
        (["{here}/run", "--out", "{here}/file"], "--out: {here}/file is a file"),
        (["{here}/run", "--out", "{here}"], "holds other files and no report"),
        (["{here}/run", "--heat-map", "ppo.lr", "seed"], "'ppo.lr' was not swept; choose two from none"),
    ],
)
def test_a_bad_request_is_one_line_that_names_the_choices(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "bare").mkdir()
    (tmp_path / "file").write_text("")
    assert report(*(word.format(here=tmp_path) for word in words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message.format(here=tmp_path) in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "run" / "report").exists()


def test_what_cannot_be_written_is_said_and_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert report(make_run(tmp_path / "run"), "--out", tmp_path / "file" / "report") == 1
    assert "the report cannot be written to" in capsys.readouterr().err
