"""Tables and pictures of an evaluation say what was measured, and nothing else."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console

from esper.growth.actions import OP_NAMES
from esper.telemetry.results import OF_TEXT, ResultRow
from esper.telemetry.statistics import Interval, Mean
from esper.views import choices_plot, frontier_plot, plots
from esper.views.choices import Kept, KeptModule, choice_table, commonest_plan
from esper.views.choices_plot import choice_map
from esper.views.frontier_plot import BITS, FLOPS, RETURN, FrontierPoint, frontier, pareto
from esper.views.palette import look
from esper.views.result_tables import compute_line, evaluation_tables, verdict, write_rows
from esper.views.text import formatted, number

LIGHT_0, LIGHT_1, NORM_1 = (
    KeptModule("r0c0", "conv_light"),
    KeptModule("r0c1", "conv_light"),
    KeptModule("r0c1", "norm"),
)
HOSTS = (
    Kept("starved", (LIGHT_1,)),
    Kept("intact", (LIGHT_0,)),
    Kept("starved", ()),
    Kept("intact", (NORM_1, LIGHT_0)),
    Kept("starved", (LIGHT_1,)),
)


def about(estimate: float, half: float = 0.0) -> Interval:
    return Interval(estimate, estimate - half, estimate + half, True)


SHARES = {"WAIT": 0.64, "GERMINATE": 0.12, "CULL": 0.01, "FOSSILIZE": 0.07, "SET_ALPHA_TARGET": 0.03, "EXTEND": 0.13}
DID: dict[str, Any] = {
    "num_germinated": 2.3,
    "survival": 0.391,
    "op_share": dict.fromkeys(OP_NAMES, 0.0) | SHARES,
}


def point(name: str, parameters: float, accuracy: float) -> FrontierPoint:
    return FrontierPoint(name=name, cost=about(parameters, 0.1 * parameters), score=about(accuracy, 0.01))


POINTS = (
    point("learned", 640, 0.792),
    point("heuristic", 480, 0.742),
    point("probe_rule", 600, 0.785),
    point("probe_and_keep", 820, 0.781),
    point("schedule_best", 592, 0.752),
    point("random", 910, 0.733),
    point("never", 0, 0.708),
    point("static_full", 2960, 0.815),
)


def row(name: str, **measured: Interval | float) -> ResultRow:
    return ResultRow(name=name, num_runs=5, num_hosts=64, **measured)  # type: ignore[arg-type]


def printed(rows: list[ResultRow], width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(evaluation_tables(rows, "64 held-out hosts"))
    return out.getvalue()


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they were saved."""
    saved: list[Figure] = []
    real = plots.save

    def keep(figure: Figure, path: Path) -> None:
        saved.append(figure)
        real(figure, path)

    monkeypatch.setattr(frontier_plot, "save", keep)
    monkeypatch.setattr(choices_plot, "save", keep)
    return saved


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


def shown(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def legend(figure: Figure) -> list[Line2D]:
    """Keys of the legend, if there is one."""
    legends = [found for axes in figure.axes if (found := axes.get_legend()) is not None]
    return [line for found in legends for line in found.get_lines()]


def test_the_frontier_leaves_out_what_another_beats() -> None:
    names = [found.name for found in pareto(POINTS)]
    assert names == ["never", "heuristic", "schedule_best", "probe_rule", "learned", "static_full"]
    assert pareto(POINTS[::-1]) == pareto(POINTS)


def test_points_that_are_alike_do_not_beat_each_other() -> None:
    twins = [point("a", 10, 0.5), point("b", 10, 0.5), point("worse", 11, 0.5), point("lower", 10, 0.4)]
    assert [found.name for found in pareto(twins)] == ["a", "b"]


def test_of_bits_fewer_are_better_and_better_is_up(tmp_path: Path, figures: list[Figure]) -> None:
    points = [point("learned", 640, 2.31), point("random", 910, 2.42), point("never", 0, 2.40)]
    assert [found.name for found in pareto(points, BITS)] == ["never", "learned"]
    assert [found.name for found in pareto(points)] == ["never", "random"]
    frontier(points, tmp_path / "frontier.png", BITS)
    (axes,) = figures[0].axes
    assert axes.yaxis_inverted()
    assert axes.get_ylabel() == "test bits per byte"
    assert "never grow (2.400)" in [line.get_label() for line in legend(figures[0])]
    assert not any("%" in label.get_text() for label in axes.get_yticklabels())
    lines = [line for line in axes.lines if line.get_label() == "Pareto frontier"]
    assert list(lines[0].get_ydata()) == [2.40, 2.31]  # type: ignore[arg-type]


def test_bars_of_accuracies_end_at_0_and_100_percent(tmp_path: Path, figures: list[Figure]) -> None:
    points = [FrontierPoint(name="never", cost=about(0.0), score=about(0.2, 0.3))]
    frontier(points, tmp_path / "frontier.png")
    frontier(points, tmp_path / "frontier.png", RETURN)
    lowest = [
        min(path.vertices[:, 1].min() for bars in figure.axes[0].containers[0][2] for path in bars.get_paths())
        for figure in figures
    ]
    assert lowest == pytest.approx([0.0, -0.1])


def test_a_return_is_drawn_against_multiples_of_the_host_alone(tmp_path: Path, figures: list[Figure]) -> None:
    points = [point("learned", 1.62, 12.5), point("never", 1.0, 0.0), point("random", 1.7, 3.0)]
    assert [found.name for found in pareto(points, RETURN)] == ["never", "learned"]
    frontier(points, tmp_path / "frontier.png", RETURN, FLOPS)
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "training FLOPs, as a multiple of the host alone"
    assert axes.get_ylabel() == "return, points"
    assert "never grow (+0.00)" in [line.get_label() for line in legend(figures[0])]
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert all(tick.endswith(" ×") for tick in ticks)
    assert len(set(ticks)) == len(ticks) > 2


def test_compute_is_named_for_every_controller_that_was_measured() -> None:
    line = compute_line([row("learned", flops_ratio=about(1.618)), row("never", flops_ratio=about(1.0)), row("random")])
    assert line == "training FLOPs over those of the host alone: learned 1.62, never 1.00"


def test_words_say_what_two_standard_errors_tell_apart() -> None:
    gaps = {"heuristic": 6.3, "schedule": 1.9, "random": -1.9, "one_bit": -2.1, "never": 11.0}
    rows = [row("learned"), *(row(name, return_difference=Mean(gap, 1.0)) for name, gap in gaps.items())]
    told = "clearly above heuristic, never; not clearly different from schedule, random; clearly below one_bit"
    assert verdict(rows) == f"in return, learned is {told} (two standard errors; one run of training)"
    assert verdict(rows[:1]) is None


def test_a_single_host_tells_nothing_apart() -> None:
    assert verdict([row("learned"), row("never", return_difference=Mean(11.0, None))]) is None


def test_a_frontier_plot_names_every_controller_beside_its_marker(tmp_path: Path, figures: list[Figure]) -> None:
    frontier(POINTS, tmp_path / "plots" / "frontier.png")
    assert is_png(tmp_path / "plots" / "frontier.png")
    names = {text.get_text(): text.get_color() for text in figures[0].axes[0].texts if text.get_text()}
    assert names == {found.name: look(found.name).colour for found in POINTS}


def test_a_frontier_plot_has_a_dashed_level_for_never_and_a_line_through_the_frontier(
    tmp_path: Path, figures: list[Figure]
) -> None:
    few = [point("static_full", 2960, 0.815), point("learned", 640, 0.792), point("random", 910, 0.733)]
    frontier([*few, point("never", 0, 0.708)], tmp_path / "with.png")
    frontier(few, tmp_path / "without.png")
    dashed = [[line for line in figure.axes[0].lines if line.get_linestyle() == "--"] for figure in figures]
    assert [list(line.get_ydata()) for line in dashed[0]] == [[0.708, 0.708]]  # type: ignore[arg-type]
    assert dashed[1] == []
    lines = [line for line in figures[0].axes[0].lines if line.get_label() == "Pareto frontier"]
    assert list(lines[0].get_xdata()) == [0, 640, 2960]  # type: ignore[arg-type]


def test_names_of_controllers_that_lie_close_together_cover_nothing(tmp_path: Path, figures: list[Figure]) -> None:
    names = ("learned", "heuristic", "probe_rule", "probe_and_keep", "schedule_best", "schedule_per_family")
    frontier([point(name, 300 + 9 * place, 0.73) for place, name in enumerate(names)], tmp_path / "frontier.png")
    written = [text for text in figures[0].axes[0].texts if text.get_text()]
    boxes = [text.get_window_extent() for text in written]
    assert {text.get_text() for text in written} == set(names)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("count", [0, 1])
def test_a_frontier_of_hardly_anything_is_drawn(count: int, tmp_path: Path, figures: list[Figure]) -> None:
    frontier([point("never", 0, 0.7)] * count, tmp_path / "frontier.png")
    assert is_png(tmp_path / "frontier.png")
    assert shown(figures[0]) == (["never"] if count else ["no controller measured"])


def test_the_choice_table_counts_every_host_once() -> None:
    table = choice_table(HOSTS)
    assert table.families == ("intact", "starved")
    assert table.num_hosts == (2, 3)
    assert table.choices == (LIGHT_0, LIGHT_1, NORM_1, None)
    intact, starved = table.share.tolist()
    assert intact == [0.75, 0.0, 0.25, 0.0]
    assert starved == pytest.approx([0.0, 2 / 3, 0.0, 1 / 3])


def test_the_order_of_hosts_and_modules_does_not_matter() -> None:
    turned = [Kept(host.family, host.modules[::-1]) for host in HOSTS[::-1]]
    before, after = choice_table(HOSTS), choice_table(turned)
    assert after.share.flatten().tolist() == pytest.approx(before.share.flatten().tolist())
    assert (after.families, after.num_hosts, after.choices) == (before.families, before.num_hosts, before.choices)
    assert commonest_plan(turned) == commonest_plan(HOSTS)


def test_slots_are_in_canonical_order() -> None:
    hosts = [Kept("intact", (KeptModule(slot, "norm"),)) for slot in ("r0c10", "r1c2", "r0c2")]
    assert [choice and choice.slot for choice in choice_table(hosts).choices] == ["r0c2", "r1c2", "r0c10"]


def test_a_fixed_plan_is_recognised_whatever_the_family() -> None:
    assert commonest_plan([Kept(name, (NORM_1, LIGHT_0)) for name in "abc"]) == ((LIGHT_0, NORM_1), 1.0)
    assert commonest_plan(HOSTS) == ((LIGHT_1,), pytest.approx(0.4))
    assert commonest_plan([Kept("a", ()), Kept("b", ()), Kept("c", (LIGHT_0,))]) == ((), pytest.approx(2 / 3))
    with pytest.raises(ValueError, match="no hosts"):
        commonest_plan([])


def test_the_choice_map_shows_shares_families_and_the_commonest_plan(tmp_path: Path, figures: list[Figure]) -> None:
    choice_map(HOSTS, tmp_path / "plots" / "choices.png", "learned")
    assert is_png(tmp_path / "plots" / "choices.png")
    axes = figures[0].axes[0]
    assert shown(figures[0]) == ["75", "25", "67", "33", "r0c0", "r0c1"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["intact (2)", "starved (3)"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["conv_light", "conv_light", "norm", "nothing"]
    assert "learned controller" in figures[0].get_suptitle()
    assert "conv_light in r0c1, 40% of hosts" in figures[0].get_suptitle()


@pytest.mark.parametrize("hosts", [[], [Kept("intact", ())]])
def test_a_choice_map_of_hardly_anything_is_drawn(hosts: list[Kept], tmp_path: Path, figures: list[Figure]) -> None:
    choice_map(hosts, tmp_path / "choices.png", "never")
    assert is_png(tmp_path / "choices.png")
    assert shown(figures[0]) == (["100"] if hosts else ["no hosts recorded"])


def test_the_tables_hold_every_number() -> None:
    text = printed(
        [
            row(
                "schedule_best",
                episode_return=about(10.2, 1.5),
                return_iqm=about(9.87),
                return_difference=about(3.7, 1.1),
                improvement=about(0.83),
                val_accuracy=about(0.761),
                test_accuracy=about(0.752),
                test_difference=about(0.04, 0.01),
                added_parameters=about(1592.4),
                flops_ratio=about(1.27),
                wall_seconds=812.6,
                num_fossilized=0.9,
                **DID,
            )
        ]
    )
    for part in ("schedule_best", "+10.20 [+8.70,+11.70]", "+9.87", "+3.70 [+2.60,+4.80]", "0.83", "76.1", "75.2"):
        assert part in text
    for part in (
        "+4.0 [+3.0,+5.0]",
        "1,592",
        "1.27",
        "813",
        "2.3",
        "0.9",
        "39",
        "64",
        "12",
        "13",
        "run seeds: 5; hosts: 64",
    ):
        assert part in text
    assert "–" not in text


def test_what_was_not_measured_is_a_dash() -> None:
    line = next(line for line in printed([row("never", episode_return=about(0.0))]).splitlines() if "never" in line)
    assert line.split() == ["never", "+0.00", "[+0.00,+0.00]", "–", "–", "–"]


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal_and_keep_every_number_whole(width: int) -> None:
    measured = row(
        "schedule_per_family",
        episode_return=about(13.9, 1.3),
        return_iqm=about(14.25),
        return_difference=about(-13.9, 1.3),
        improvement=about(0.83),
        val_accuracy=about(0.761),
        test_accuracy=about(0.752),
        test_difference=about(-0.123, 0.02),
        added_parameters=about(12_960),
        flops_ratio=about(1.27),
        wall_seconds=1812.6,
        num_fossilized=0.9,
        **DID,
    )
    text = printed([measured], width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = text.split()
    for part in (
        "schedule_per_family",
        "[+12.60,+15.20]",
        "+14.25",
        "-13.90",
        "[-15.20,-12.60]",
        "0.83",
        "76.1",
        "75.2",
    ):
        assert part in words
    assert {"SET_", "ALPHA", "GERMI", "FOSSI", "EXTEND", "vived"} <= set(words), "no header breaks elsewhere"
    for part in ("-12.3", "[-14.3,-10.3]", "12,960", "1.27", "1,813", "2.3", "0.9", "39", "64", "12", "13"):
        assert part in words


TEXT = row(
    "schedule_per_family",
    test_accuracy=about(0.412),
    val_bits=about(2.498),
    test_bits=about(2.5123, 0.0101),
    bits_difference=about(-0.0324, 0.004),
    bits_over_never=about(-0.1049, 0.02),
)


@pytest.mark.parametrize("width", [80, 120])
def test_of_text_the_tables_have_bits_per_byte_too(width: int) -> None:
    text = printed([TEXT, row("never", test_bits=about(2.6172, 0.01))], width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = text.split()
    for part in ("41.2", "2.498", "2.512", "[2.502,2.522]", "-0.032", "[-0.036,-0.028]", "-0.105", "[-0.125,-0.085]"):
        assert part in words
    assert text.count("lower is better") == text.count("run seeds: 5") == 1


def test_of_images_nothing_is_said_of_bits(tmp_path: Path) -> None:
    images = [row("learned", test_accuracy=about(0.8)), row("never", test_accuracy=about(0.7))]
    assert "bits" not in printed(images)
    write_rows(images, tmp_path / "images.csv")
    write_rows([TEXT, row("never")], tmp_path / "text.csv")
    header, first, second = (tmp_path / "text.csv").read_text().splitlines()
    names = header.split(",")
    assert [name for name in names if "bits" in name] == [
        name + part for name in OF_TEXT for part in ("", "_low", "_high")
    ]
    assert float(dict(zip(names, first.split(","), strict=True))["bits_over_never"]) == -0.1049
    assert second.endswith("," * 12)
    assert (tmp_path / "images.csv").read_text().splitlines()[0] == header.partition(",val_bits")[0]


def test_the_caption_says_what_one_run_seed_leaves_out() -> None:
    alone = ResultRow(name="learned", num_runs=1, num_hosts=64)
    assert "what another run would give is not in the intervals" in " ".join(printed([alone]).split())
    assert "another run" not in printed([alone, row("learned")])
    assert "run seeds: 1–5" in printed([alone, row("learned")])


def test_csv_has_every_number_unrounded_and_blanks_for_what_was_not_measured(tmp_path: Path) -> None:
    rows = [row("learned", episode_return=about(1 / 3, 0.1), flops_ratio=about(1.1)), row("never")]
    write_rows(rows, tmp_path / "tables" / "rows.csv")
    with (tmp_path / "tables" / "rows.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert float(first["episode_return"]) == 1 / 3
    assert float(first["episode_return_low"]) == 1 / 3 - 0.1
    assert float(first["episode_return_high"]) == 1 / 3 + 0.1
    assert (first["name"], first["num_runs"], first["num_hosts"], first["flops_ratio"]) == ("learned", "5", "64", "1.1")
    assert {name for name, value in second.items() if value} == {"name", "num_runs", "num_hosts"}
    assert list(first) == list(second)


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(-0.001, ".1f", "0.0"), (-0.001, "+.2f", "+0.00"), (-0.4, ",.0f", "0"), (-1.5, "+.1f", "-1.5")],
)
def test_a_number_that_rounds_to_zero_has_no_minus_sign(value: float, spec: str, text: str) -> None:
    assert formatted(value, spec) == text
    assert number(value / 100, spec, 100) == text
