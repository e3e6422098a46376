"""Tables are readable in terminals of every width: no word is cut, and nothing is left out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from run_folders import make_run, metrics

from esper.growth.actions import OP_NAMES
from esper.report.compose import gather
from esper.report.tables import terminal_table
from esper.runtime.run_folder import RunCondition
from esper.telemetry.results import ResultRow
from esper.telemetry.statistics import Interval, Mean
from esper.views.folding import FoldingTable
from esper.views.result_tables import evaluation_tables, training_table
from esper.views.sweep_table import JobRow, print_sweep
from esper.views.text import live_table

WIDTHS = (24, 40, 60, 80, 200)
MEAN, INTERVAL = Mean(0.5234, 0.0432), Interval(0.5234, 0.4123, 0.6345, True)


def drawn(what: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def closing() -> RenderableType:
    row = {"episode_return": MEAN, "val_accuracy": MEAN, "test_accuracy": MEAN, "added_parameters": MEAN}
    rest = {"op_share": dict.fromkeys(OP_NAMES, 0.16), "num_fossilized": MEAN}
    return training_table([ResultRow(name="schedule_per_family", num_runs=1, num_hosts=32, **row, **rest)], "hosts")


def evaluation() -> RenderableType:
    earned = {"episode_return": INTERVAL, "return_iqm": INTERVAL, "return_difference": INTERVAL}
    became = {"val_accuracy": INTERVAL, "test_accuracy": INTERVAL, "test_difference": INTERVAL}
    shares = dict.fromkeys(OP_NAMES, 0.16)
    row = ResultRow(
        name="schedule_per_family", num_runs=3, num_hosts=64, **earned, **became, survival=0.5, op_share=shares
    )
    return evaluation_tables([row], "held-out hosts")


WORDS: dict[str, tuple[Callable[[], RenderableType], tuple[str, ...]]] = {
    "training": (closing, ("schedule_per_family", "+0.52 ± 0.04", "52.3 ± 4.3", "modules kept: 0.5")),
    "evaluation": (
        evaluation,
        ("schedule_per_family", "return [95 %]: +0.52 [+0.41,+0.63]", "germinated: –", "SET_ALPHA_TARGET %: 16"),
    ),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", WORDS)
def test_every_word_is_whole_and_no_line_too_long(name: str, width: int) -> None:
    make, words = WORDS[name]
    text = drawn(make(), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    if width <= 60:
        together = " ".join(text.split())
        for word in words:
            assert word in together


def test_the_closing_table_of_a_run_is_a_table_in_80_columns() -> None:
    counted = {"op_share": dict.fromkeys(OP_NAMES, 1.0), "num_fossilized": Mean(0.5, 0.25)}
    scores = {"val_accuracy": Mean(0.698, 0.172), "test_accuracy": Mean(0.701, 0.161)}
    row = {"episode_return": Mean(-21.78, 11.96), "added_parameters": Mean(1192.0, 183.0), **scores, **counted}
    names = ("learned", "heuristic", "random", "never")
    lines = drawn(
        training_table([ResultRow(name=name, num_runs=1, num_hosts=24, **row) for name in names], "hosts"), 80
    )
    for name in names:
        numbers = r"-21.78 ± 11.96 +69.8 ± 17.2 +70.1 ± 16.1 +1192 ± 183 +100 +0.5"
        assert re.search(rf"^{name} +{numbers} *$", lines, re.M)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sweep_and_a_report_show_every_job_and_configuration_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    job = {"folder": "a", "condition": RunCondition.FINISHED, "episode_return": 1.25, "test_accuracy": 0.5, "note": ""}
    label = "ppo.ent_coef=0.1 slots.num_slots=3"
    print_sweep(
        tmp_path,
        [JobRow(number=number, label=label, configuration="", wall_seconds=100.0, **job) for number in range(2)],
    )
    runs = [make_run(tmp_path / f"{number}", number, ppo__ent_coef=0.1 * number) for number in (1, 2)]
    report = gather(runs, statistic="mean", score=None, heat=None)
    texts = [capsys.readouterr().out, drawn(terminal_table(report.sweep, report.statistic, report.score), width)]
    for text, words in zip(texts, (("finished", "+1.25", "1:40", *label.split()), ("ent_coef=0.1",)), strict=True):
        assert "…" not in text
        for word in words:
            assert word in text


@pytest.mark.parametrize("width", [40, 60, 76, 120])
def test_the_live_view_shows_its_numbers_whole(width: int) -> None:
    text = drawn(live_table([metrics(number) for number in range(1, 4)], width), width)
    assert "…" not in text
    together = re.sub(r"[▁-█]", "", " ".join(text.split()))
    for words in ("+1.00 ± 0.10 never 0", "70.0 % never 60.0 %", "100 env-epochs/s", "60 % WAIT", "75 % DORMANT"):
        assert words in together
    if width == 120:  # bars take the room that there is
        assert text.count("█") > drawn(live_table([metrics(1)], 80), 80).count("█") * 2


@pytest.mark.parametrize("width", [20, 100])
def test_what_looks_like_markup_is_shown_as_it_is(width: int) -> None:
    table = FoldingTable("[x] :smile:", "[/]")
    table.add("[red]")
    table.add("[b]\nc")
    table.add_row("[x]", "longer than [twenty]")
    text = " ".join(drawn(table, width).split())
    for words in ("[x] :smile:", "[/]", "[red]", "[b]", "longer than [twenty]"):
        assert words in text
