"""The terminal shows the numbers, and is never silent for long."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from esper.telemetry.events import Anomaly, HostCrashed, RatioExplosion
from esper.telemetry.results import ResultRow
from esper.telemetry.statistics import Mean
from esper.views.console import ConsoleLogger
from esper.views.result_tables import training_table
from esper.views.text import clock, sparkline, with_spread

METRICS = {
    "charts/episodic_return": 1.234,
    "charts/episodic_return_sem": 0.111,
    "charts/final_val_accuracy": 0.832,
    "charts/final_val_accuracy_sem": 0.012,
    "charts/never_val_accuracy": 0.708,
    "charts/SPS": 381.4,
    "charts/added_parameters": 612.0,
    "charts/num_fossilized": 1.3,
    "ops/choice_share/WAIT": 0.41,
    "ops/choice_share/GERMINATE": 0.59,
    "stages/DORMANT": 0.75,
    "stages/FOSSILIZED": 0.25,
}


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def console(*, terminal: bool = False, width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=width, color_system=None, _environ={"TERM": "xterm"}), out


def test_a_plain_line_holds_the_numbers_and_stays_one_line() -> None:
    target, out = console()
    logger = ConsoleLogger("plain", 40, console=target, now=Clock())
    logger.metrics(3, METRICS)
    (line,) = out.getvalue().splitlines()
    for number in ("3/40", "+1.23 ± 0.11", "83.2%", "70.8%", "41%", "+612", "1.3", "381 env-epochs/s"):
        assert number in line


def test_plain_lines_are_aligned_whatever_was_measured() -> None:
    target, out = console()
    logger = ConsoleLogger("plain", 40, console=target, now=Clock())
    logger.metrics(9, METRICS)
    logger.metrics(10, {})
    logger.metrics(11, METRICS | {"charts/episodic_return": -0.5, "charts/final_val_accuracy": 1.0})
    lines = out.getvalue().splitlines()
    assert len({line.index("val ") for line in lines}) == len({line.index("env-epochs/s") for line in lines}) == 1
    assert "–" in lines[1]


def test_the_remaining_time_follows_from_the_iterations_so_far() -> None:
    now = Clock()
    target, out = console()
    logger = ConsoleLogger("plain", 10, console=target, now=now)
    assert logger.eta(0) is None
    now.time = 500.0
    logger.stage("never-grown twins", 64, 64)  # what was prepared before does not count
    for iteration in (1, 2):
        now.time += 30.0
        logger.metrics(iteration, METRICS)
    assert logger.eta(2) == pytest.approx(240.0)
    assert "4:00" in out.getvalue().splitlines()[-1]


def test_a_long_preparation_prints_its_start_a_line_every_few_seconds_and_its_end() -> None:
    now = Clock()
    target, out = console()
    logger = ConsoleLogger("plain", 10, console=target, now=now)
    for done in range(101):
        now.time = done * 0.2
        logger.stage("never-grown twins", done, 100)
    lines = out.getvalue().splitlines()
    assert lines[0] == "never-grown twins 0/100"
    assert lines[-1] == "never-grown twins 100/100"
    assert 4 <= len(lines) <= 6
    logger.stage("held-out hosts", 0, 8)
    assert out.getvalue().splitlines()[-1] == "held-out hosts 0/8"


def test_what_went_wrong_is_counted_in_the_line_of_its_iteration_only() -> None:
    target, out = console()
    logger = ConsoleLogger("plain", 10, console=target, now=Clock())
    crash = HostCrashed(
        environment=0, iteration=1, epoch=2, instance=3, family="intact", reason="loss is nan", twin_crashed=None
    )
    logger.event(crash)
    logger.event(crash)
    logger.metrics(1, METRICS)
    logger.metrics(2, METRICS)
    first, second = out.getvalue().splitlines()
    assert first.endswith("! host_crashed x2")
    assert "!" not in second


def test_the_details_of_an_anomaly_are_not_counted_beside_it() -> None:
    target, out = console()
    logger = ConsoleLogger("plain", 10, console=target, now=Clock())
    for minibatch in range(4):
        logger.event(RatioExplosion(iteration=1, update_epoch=0, minibatch=minibatch, count=3, worst=()))
    logger.event(Anomaly(iteration=1, name="ratio_explosion", message="largest probability ratio 9 > 5", value=9.0))
    logger.metrics(1, METRICS)
    assert out.getvalue().splitlines()[0].endswith("! ratio_explosion x1")


def test_off_prints_nothing() -> None:
    target, out = console(terminal=True)
    logger = ConsoleLogger("off", 10, console=target)
    logger.stage("twins", 1, 1)
    logger.metrics(1, METRICS)
    logger.close("finished")
    assert out.getvalue() == ""


def test_auto_is_live_on_a_terminal_and_plain_elsewhere() -> None:
    for terminal in (True, False):
        target, out = console(terminal=terminal)
        logger = ConsoleLogger("auto", 10, console=target)
        logger.metrics(1, METRICS)
        logger.close("finished")
        assert ("\x1b[?25l" in out.getvalue()) == terminal  # a live view hides the cursor


def test_the_live_view_fits_eighty_columns_and_leaves_its_numbers_and_the_cursor() -> None:
    target, out = console(terminal=True)
    logger = ConsoleLogger("live", 40, console=target)
    logger.stage("never-grown twins", 12, 64)
    logger.metrics(1, METRICS)
    logger.metrics(2, METRICS)
    logger.close("finished")
    logger.close("finished")
    text = out.getvalue()
    for number in (
        "12/64",
        " 2/40",
        "+1.23 ± 0.11",
        "83.2 ± 1.2 %",
        "never 70.8 %",
        "+612",
        "381",
        "41 %  WAIT",
        "75 %",
    ):
        assert number in text
    assert "…" not in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_an_unknown_mode_names_the_choices() -> None:
    with pytest.raises(ValueError, match="'fancy'; choose from auto, live, plain, off"):
        ConsoleLogger("fancy", 1)


def test_the_closing_table_fits_eighty_columns_and_shows_what_was_not_measured() -> None:
    rows = [
        ResultRow(
            num_runs=1,
            name="heuristic",
            num_hosts=64,
            episode_return=Mean(-12.345, 0.678),
            val_accuracy=Mean(0.8412, 0.0113),
            test_accuracy=Mean(0.8301, 0.0102),
            added_parameters=Mean(1412.0, 130.4),
            op_share={"WAIT": 0.751},
            num_fossilized=Mean(1.61, 0.12),
        ),
        ResultRow(
            num_runs=1,
            name="never",
            num_hosts=64,
            episode_return=Mean(0.0, 0.0),
            val_accuracy=Mean(0.7, None),
            test_accuracy=None,
            added_parameters=Mean(0.0, 0.0),
            num_fossilized=Mean(0.0, 0.0),
        ),
    ]
    target, out = console(width=80)
    target.print(training_table(rows, "Held-out hosts"))
    text = out.getvalue()
    for number in ("-12.35 ± 0.68", "84.1 ± 1.1", "83.0 ± 1.0", "1412 ± 130", " 75 ", " 1.6", "64 hosts"):
        assert number in text
    assert "…" not in text
    never = next(line for line in text.splitlines() if line.startswith("never"))
    assert never.count("–") == 2
    assert "70.0" in never


def test_sparkline_spans_its_values_and_leaves_gaps() -> None:
    assert sparkline([0.0, None, 1.0, float("nan")], 10) == "▁ █ "
    assert sparkline([5.0, 5.0], 10) == "▁▁"
    assert sparkline(list(range(100)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([None], 8) == ""


def test_clock_counts_hours_only_when_there_are_some() -> None:
    assert [clock(value) for value in (None, 0, 59.6, 3599, 3661)] == ["-:--", "0:00", "1:00", "59:59", "1:01:01"]


@pytest.mark.parametrize(
    ("mean", "sem", "shown"),
    [
        (8.1234, 2.9, "+8.12 ± 2.90"),
        (0.0089, 0.0048, "+0.009 ± 0.005"),
        (0.5, 1e-5, "+0.50000 ± 0.00001"),
        (0.5, 0.0, "+0.50 ± 0.00"),
    ],
)
def test_a_standard_error_is_shown_as_0_only_where_it_is(mean: float, sem: float, shown: str) -> None:
    assert with_spread(Mean(mean, sem), "+.2f") == shown
