"""Progress in the terminal: a live view, plain lines, or nothing."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from esper.runtime.choices import known
from esper.runtime.records import Metrics
from esper.runtime.terminal import ConsoleMode
from esper.runtime.terminal import console as terminal
from esper.telemetry.events import Anomaly, Event, HostCrashed
from esper.telemetry.hub import Logger
from esper.views.text import LIVE_WIDTH, clock, live_table, plain_line

STAGE_SECONDS = 5.0
"""Smallest number of seconds between two plain lines about one long preparation."""
ETA_WINDOW = 10
HISTORY = 512


class ConsoleLogger(Logger):
    """Logger that shows progress in the terminal.

    Args:
        mode: ``live`` redraws one view, ``plain`` prints one line per iteration, ``off`` prints nothing, ``auto`` is
            live on a terminal and plain elsewhere.
        num_iterations: iterations of the whole run.
        console: console to draw on; standard output by default.
        now: clock in seconds.

    Raises:
        ValueError: unknown mode.
    """

    name = "console"

    def __init__(
        self,
        mode: str,
        num_iterations: int,
        *,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        known("console", mode, ConsoleMode)
        self._console = console or terminal()
        self._num_iterations = num_iterations
        self._now = now
        self._mark = now()
        self._durations: deque[float] = deque(maxlen=ETA_WINDOW)
        self._notices: Counter[str] = Counter()
        self._stage_printed: tuple[str, float] | None = None
        live = mode == "live" or (mode == "auto" and self._console.is_terminal and not self._console.is_dumb_terminal)
        self._view = _LiveView(self._console, num_iterations) if live else None
        self._silent = mode == "off"

    def event(self, event: Event) -> None:
        """Count anomalies and crashes, to be shown with the next metrics."""
        if isinstance(event, Anomaly):
            self._notices[event.name] += 1
        elif isinstance(event, HostCrashed):
            self._notices[event.kind] += 1

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Show one iteration."""
        now = self._now()
        self._durations.append(now - self._mark)
        self._mark = now
        notices = ", ".join(f"{name} x{count}" for name, count in self._notices.items())
        self._notices.clear()
        if self._silent:
            return
        if self._view is not None:
            self._view.show(iteration, metrics, self.eta(iteration), notices)
        else:
            line = plain_line(iteration, self._num_iterations, self.eta(iteration), metrics)
            self._print(f"{line}  ! {notices}" if notices else line)

    def eta(self, iteration: int) -> float | None:
        """Estimate the seconds left after an iteration, from the mean of the last few; ``None`` before the first."""
        if not self._durations:
            return None
        return sum(self._durations) / len(self._durations) * (self._num_iterations - iteration)

    def stage(self, message: str, done: int, total: int) -> None:
        """Show the progress of a long preparation; plain lines at most every few seconds, and at its end."""
        now = self._now()
        self._mark = now  # an iteration's duration does not include the preparation before it
        if self._silent:
            return
        if self._view is not None:
            self._view.stage(message, done, total)
            return
        printed = self._stage_printed
        if done >= total or printed is None or printed[0] != message or now - printed[1] >= STAGE_SECONDS:
            self._print(f"{message} {done}/{total}")
            self._stage_printed = (message, now)

    def close(self, status: str) -> None:
        """Release the terminal and leave the last view on it."""
        if self._view is not None:
            self._view.close()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _LiveView:
    """One redrawn view: progress bars above, curves and shares below."""

    def __init__(self, console: Console, num_iterations: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(30 if console.width >= LIVE_WIDTH else 8),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("{task.fields[notices]}", style="red", markup=False),
            console=console,
        )
        self._iterations = self._progress.add_task("iteration", total=num_iterations, note="", notices="")
        self._stages: dict[str, TaskID] = {}
        self._history: deque[Metrics] = deque(maxlen=HISTORY)
        self._live = Live(self._progress, console=console, refresh_per_second=4)

    def show(self, iteration: int, metrics: Metrics, eta: float | None, notices: str) -> None:
        self._clear_stages()
        shown = notices and f"! {notices}"
        self._progress.update(self._iterations, completed=iteration, note=f"eta {clock(eta)}", notices=shown)
        self._history.append(dict(metrics))
        # A new renderable each time: the drawing thread never sees one that is being changed.
        self._live.update(Group(self._progress, "", live_table(self._history, self._live.console.width)))
        self._live.start(refresh=True)

    def stage(self, message: str, done: int, total: int) -> None:
        if message not in self._stages:
            self._clear_stages()
            self._stages[message] = self._progress.add_task(message, total=total, note="", notices="")
        self._progress.update(self._stages[message], completed=done, total=total)
        self._live.start(refresh=True)

    def _clear_stages(self) -> None:
        for task in self._stages.values():
            self._progress.remove_task(task)
        self._stages.clear()

    def close(self) -> None:
        self._clear_stages()
        self._live.stop()
