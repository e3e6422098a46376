"""Command line of ``python -m esper.watch``.

Exit codes: 0 the run finished or still runs, 1 it failed, 2 bad request, 3 it was preempted or killed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from esper.report.folders import KILLED, find
from esper.runtime.preemption import StopSignals
from esper.runtime.run_folder import RunState
from esper.runtime.terminal import console as terminal
from esper.runtime.terminal import reaches_somebody, say
from esper.views.text import plain_line
from esper.watch.progress import Progress
from esper.watch.screen import screen

EXIT_CODES = {RunState.FAILED: 1, RunState.PREEMPTED: 3, KILLED: 3}
BAD_REQUEST, INTERRUPTED = 2, 130
WAITING_SECONDS = 60.0
"""Seconds between two messages that a folder is still empty."""

EPILOG = """\
On a terminal it redraws one view; elsewhere it prints a line per iteration. It ends with the run.

exit codes: 0 the run finished (with --once: or still runs), 1 it failed, 2 the request cannot be met,
3 it was preempted or killed, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Follow a run with the options of the command line; return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        path = _folder(arguments.folder)
        if not 0.05 <= arguments.interval <= 3600:
            raise ValueError(f"--interval must be between 0.05 and 3600 seconds, got {arguments.interval:g}")
        with StopSignals():  # the terminal is restored
            return watch(Progress(path), terminal(), interval=arguments.interval, once=arguments.once)
    except (ValueError, OSError) as error:
        say(f"error: {error}", stderr=True)
        return BAD_REQUEST
    except KeyboardInterrupt:
        return INTERRUPTED


def watch(
    progress: Progress,
    console: Console,
    *,
    interval: float = 1.0,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show a run until it ends or the output is closed.

    Args:
        progress: state of the run.
        console: output: redrawn on a terminal, printed by line elsewhere.
        interval: seconds between two looks.
        once: look once only.
        sleep: function that waits a number of seconds.

    Returns:
        the exit code.
    """
    if once:
        progress.update()
        console.print(screen(progress, console.width))
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                progress.update()
                live.update(screen(progress, console.width), refresh=True)
                if progress.over or not reaches_somebody():
                    break
                sleep(interval)
    else:
        _lines(progress, console, interval, sleep)
    if progress.state == RunState.FAILED:
        console.print(str(progress.status.get("traceback", "")).rstrip(), markup=False, highlight=False)
    return EXIT_CODES.get(progress.state or "", 0)


def _lines(progress: Progress, console: Console, interval: float, sleep: Callable[[float], None]) -> None:
    """Print a line per iteration, anomalies as they occur, and the final state."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    waited, counted = 0.0, 0
    while True:
        fresh = progress.update()
        left = progress.eta()
        for record in fresh:
            say(plain_line(record["iteration"], progress.num_iterations or record["iteration"], left, record))
        total = progress.num_troubles
        new = min(max(total - counted, 0), len(progress.troubles))
        for line in list(progress.troubles)[len(progress.troubles) - new :]:
            say(f"! {line}")
        counted = total
        if not reaches_somebody():
            return
        if progress.over:
            say(f"{progress.state} after {progress.iteration} iterations")
            return
        if not progress.history:
            if waited % WAITING_SECONDS < interval:
                say(f"waiting: nothing recorded in {progress.folder.path} yet")
            waited += interval
        sleep(interval)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m esper.watch",
        description="Follow a run in the terminal: learning curve, op mix, slots, anomalies, speed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", help="run folder; it may still be empty")
    parser.add_argument("--once", action="store_true", help="show the current state, and exit")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between two looks; default 1"
    )
    return parser


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {what}: give a run folder, such as outputs/<preset>-seed<seed>-<time>")
    runs = find([path])
    if runs and path.resolve() not in [run.resolve() for run in runs]:
        names = ", ".join(map(str, runs[:6])) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
        raise ValueError(f"{path} holds {len(runs)} runs: watch one of {names}")
    return path
