"""A run can be followed from its folder alone: on a terminal, through a pipe, before it begins and after it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import EPISODE, lines, make_run, metrics, stage

from esper.telemetry.timeline import SlotTrace
from esper.watch.cli import main, watch
from esper.watch.progress import Progress
from esper.watch.screen import block_plot, screen


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def set_state(path: Path, state: str, **more: object) -> None:
    (path / "status.json").write_text(json.dumps({"state": state, "host": "elsewhere", "pid": 1, **more}))


def console(*, terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    environment = {"TERM": "xterm", "COLUMNS": str(width), "LINES": "60"}
    return Console(file=out, force_terminal=terminal, width=width, height=60, _environ=environment), out


def shown(path: Path, width: int = 80) -> str:
    progress = Progress(path)
    progress.update()
    target, out = console(terminal=False, width=width)
    target.print(screen(progress, width))
    return out.getvalue()


class Steps:
    """Instead of sleeping, lets the run go on: one step per call."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> None:
        assert self.steps, "the run is over, but still watched"
        self.steps.pop(0)()


def test_the_view_shows_what_there_is_within_80_columns(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="running", iterations=0)
    (path / "metrics.jsonl").write_text(lines([metrics(number, number - 2.0) for number in range(1, 4)]))
    message = "gradient norm 400 > 100, mean of the last 20 was 3.5, so something broke; look at the learning rate"
    anomaly = {"kind": "anomaly", "iteration": 2, "name": "gradient_norm", "message": message}
    (path / "events.jsonl").write_text(lines([*EPISODE, stage(1, 1, "r0c0", "DORMANT", "GERMINATED", "norm"), anomaly]))
    text = shown(path)
    for words in (
        "running", "3/4", "eta 0:03", "100 env-epochs/s", "return +1.00 ± 0.10", "val 70.0 %, never 60.0 %", "WAIT",
        "60%", "+50 parameters", "0 ·F", "1 G·", "gradient_norm x1", "iteration 2: gradient_norm: gradient norm 400",
    ):  # fmt: skip
        assert words in text
    assert "CULL" not in text  # none in the mix
    assert message in " ".join(text.split())  # folded, not cut
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, shown(path, width=60).splitlines())) <= 60


def test_96_environments_with_8_slots_fit(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="running")
    events = [
        stage(environment, 1, f"r0c{slot}", "DORMANT", "GERMINATED", "norm")
        for environment in range(100)
        for slot in range(8)
    ]
    (path / "events.jsonl").write_text(lines(events))
    text = shown(path)
    assert max(map(len, text.splitlines())) <= 80
    assert "95 GGGGGGGG" in text
    assert "and 4 more" in text


def test_a_plot_holds_every_value_and_the_level() -> None:
    rows = block_plot([0.0, None, 2.0, 1.0], 30, level=-1.0).plain.splitlines()
    assert rows[0].strip().startswith("+2.00")
    assert rows[-1].strip().startswith("-1.00")
    columns = list(zip(*(row[9:] for row in reversed(rows)), strict=False))
    heights = [sum(cell not in " -" for cell in column) for column in columns]
    assert heights[0] < heights[-1] < max(heights) == len(rows)
    assert "nothing measured" in block_plot([None, None], 30).plain
    small = block_plot([-0.0041, -0.0015], 30, level=0.0).plain.splitlines()
    assert (small[0].split()[0], small[-1].split()[0]) == ("+0.0000", "-0.0041")
    whole = block_plot([float(value) for value in range(80)], 160).plain.splitlines()
    assert [len(row) for row in whole] == [159] * len(rows)  # a few values fill a wide terminal
    assert len(block_plot([float(value) for value in range(10_000)], 80).plain.splitlines()[0]) <= 80


def test_lines_through_a_pipe_then_the_end_and_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    target, out = console(terminal=False)

    def begin() -> None:
        make_run(tmp_path / "made", state="running", iterations=0)
        for file in (tmp_path / "made").iterdir():
            file.rename(path / file.name)

    def go_on(*numbers: int) -> None:
        append(path / "metrics.jsonl", lines([metrics(number) for number in numbers]))

    def end() -> None:
        crash = {"kind": "host_crashed", "iteration": 3, "reason": "not finite"}
        explosion = {"kind": "ratio_explosion", "iteration": 3, "count": 2}  # what an anomaly of that name has said
        append(path / "events.jsonl", lines([crash, crash, explosion, explosion, crash]))
        append(path / "metrics.jsonl", lines([metrics(4)]))
        set_state(path, "finished")

    steps = Steps(lambda: None, begin, lambda: go_on(1, 2), lambda: go_on(3), end)
    assert watch(Progress(path), target, sleep=steps) == 0
    assert steps.steps == []
    text = out.getvalue()
    assert "\x1b" not in text
    first, *rest = text.splitlines()
    assert first.startswith("waiting: nothing recorded")
    assert [line[:8] for line in rest[:4]] == ["iter 1/4", "iter 2/4", "iter 3/4", "iter 4/4"]
    assert rest[4:] == ["! iteration 3: host_crashed: not finite", "finished after 4 iterations"]


@pytest.mark.parametrize(
    ("state", "code"), [("finished", 0), ("failed", 1), ("preempted", 3), ("running", 0), (None, 0), ("requeued", 0)]
)
def test_once_shows_how_it_stands_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str | None, code: int
) -> None:
    path = make_run(tmp_path / "run", state=state, traceback="Traceback:\nOSError: disk full")
    assert main([str(path), "--once"]) == code
    printed = capsys.readouterr().out
    assert (state or "unknown") in printed
    assert "nothing is recorded here yet" not in printed
    assert ("OSError: disk full" in printed) == (state == "failed")


def test_a_terminal_gets_one_view_that_ends_with_the_run(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="running", iterations=1)
    target, out = console(terminal=True)
    assert watch(Progress(path), target, sleep=Steps(lambda: set_state(path, "preempted"))) == 3
    assert "preempted" in out.getvalue()
    assert "\x1b" in out.getvalue()


def test_a_folder_with_nothing_in_it_says_that_it_waits(tmp_path: Path) -> None:
    assert "waiting for the run to start" in shown(tmp_path)
    path = make_run(tmp_path / "run", state="running", iterations=0)
    assert "preparing: no iteration recorded yet" in shown(path)


def test_a_run_whose_process_is_gone_ends_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path / "run", state="running")
    monkeypatch.setattr("esper.watch.progress.is_gone", lambda status: True)
    target, out = console(terminal=False)
    assert watch(Progress(path), target, sleep=Steps()) == 3
    assert out.getvalue().splitlines()[-1] == "killed after 4 iterations"
    assert "its process is gone" in shown(path)


def test_files_that_a_resumed_run_cut_back_are_followed_from_there(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="preempted", iterations=4)
    progress = Progress(path)
    progress.update()
    assert (progress.iteration, progress.over) == (4, True)
    set_state(path, "running")
    (path / "metrics.jsonl").write_text(lines([metrics(1), metrics(2, 9.0)]))
    (path / "events.jsonl").write_text(lines(EPISODE[:2]))
    fresh = progress.update()
    assert [record["iteration"] for record in fresh] == [1, 2]
    assert [record["charts/episodic_return"] for record in progress.history] == [1.0, 9.0]
    assert not progress.over
    assert progress.trace.finished == {}


def test_nothing_is_read_twice(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="running")
    progress = Progress(path)
    progress.update()
    sizes = [(path / name).stat().st_size for name in ("metrics.jsonl", "events.jsonl")]
    append(path / "metrics.jsonl", lines([metrics(5)]))
    progress.update()
    progress.update()
    more = len(lines([metrics(5)]))
    assert (progress._metrics.bytes_read, progress._events.bytes_read) == (sizes[0] + more, sizes[1])


def test_garbage_in_the_files_is_counted_and_passed_over(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", state="running", iterations=1)
    append(path / "metrics.jsonl", 'garbage\n{"iteration": 2, "charts/SPS": "fast", "charts/episodic_return": NaN}\n')
    append(path / "events.jsonl", '{"kind": "anomaly", \n{"kind": "stage_changed", "environment": 0}\n')
    assert "2 lines of the run's files were invalid" in shown(path)


def test_a_long_event_file_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.watch.progress.EVENT_TAIL", 400)
    path = make_run(tmp_path / "run", state="running")
    anomaly = {"kind": "anomaly", "iteration": 2, "name": "gradient_norm", "message": "large"}
    (path / "events.jsonl").write_text(lines([anomaly] * 100))
    text = shown(path)
    assert "in the events that were read" in text
    assert "gradient_norm x100" not in text


def test_the_trace_knows_each_episode_and_when_stages_begin() -> None:
    trace = SlotTrace()
    for record in EPISODE:
        trace.take(record)
    changes = [(change.epochs, change.stage) for change in trace.finished[0].changes]
    # Actions come before an epoch is trained, other changes after.
    assert changes == [(0, "GERMINATED"), (1, "TRAINING"), (3, "BLENDING"), (4, "HOLDING"), (4, "FOSSILIZED")]
    assert trace.slot_ids == ("r0c1",)
    latest = trace.latest(0)
    assert latest is not None
    assert latest.stages()["r0c1"].stage == "FOSSILIZED"  # while the next one has not begun
    trace.take(stage(0, 1, "r0c1", "DORMANT", "GERMINATED", "norm"))
    latest = trace.latest(0)
    assert latest is not None
    assert latest.stages()["r0c1"].stage == "GERMINATED"
    assert trace.latest(7) is None
    partial = SlotTrace(from_start=False)
    for record in EPISODE[3:]:
        partial.take(record)
    assert partial.finished == {}
    for record in EPISODE:
        partial.take(record)
    assert len(partial.finished[0].changes) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist: give a run folder"),
        (["{here}/runs/a/config.yaml"], "is a file"),
        (["{here}/runs"], "holds 2 runs: watch one of {here}/runs/a, {here}/runs/b"),
        (["{here}/runs/a", "--interval", "0"], "--interval must be between 0.05 and 3600 seconds, got 0"),
    ],
)
def test_a_bad_request_is_one_line(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name)
    assert main([word.format(here=tmp_path) for word in words]) == 2
    assert message.format(here=tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_it_ends_when_nobody_is_there_to_see_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("esper.watch.cli.reaches_somebody", lambda: False)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    progress = Progress(make_run(tmp_path / "run", state="running"))
    assert watch(progress, console, sleep=lambda _: pytest.fail("it goes on")) == 0
