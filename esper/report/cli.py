"""Command line of ``python -m esper.report``. Exit codes: 0 written, 1 cannot be written, 2 bad request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from esper.report.comparison import verdict
from esper.report.compose import PAGE, Report, gather, write
from esper.report.folders import is_run
from esper.report.numbers import SCORES, STATISTICS
from esper.report.tables import terminal_table
from esper.runtime.choices import known
from esper.runtime.preemption import StopSignals
from esper.runtime.terminal import console, say

EPILOG = """\
examples:
  python -m esper.report outputs/digits-seed0-20260101-120000
  python -m esper.report multirun/study --statistic iqm
  python -m esper.report outputs/a outputs/b --out reports/a-and-b --score test_accuracy

exit codes: 0 the report is written, 1 it cannot be written, 2 the request cannot be met
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write a report with the options of the command line; return the exit code."""
    arguments = _parser().parse_args(argv)
    with StopSignals():  # incomplete files are removed
        return _report(arguments)


def _report(arguments: argparse.Namespace) -> int:
    try:
        roots = [_folder(text) for text in dict.fromkeys(arguments.folders)]
        out = _out(arguments.out, roots)
        known("--statistic", arguments.statistic, STATISTICS)
        if arguments.score is not None:
            known("--score", arguments.score, SCORES)
        heat = tuple(arguments.heat_map) if arguments.heat_map else None
        report = gather(roots, statistic=arguments.statistic, score=arguments.score, heat=heat)
    except ValueError as error:
        say(f"error: {error}", stderr=True)
        return 2
    title = arguments.title or " and ".join(root.resolve().name for root in roots)
    try:
        page = write(report, out, title)
    except OSError as error:
        say(f"error: the report cannot be written to {out} ({error.strerror or error})", stderr=True)
        return 1
    _print(report, page)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m esper.report",
        description="Turn a run, a sweep or several into tables, CSV files, plots and one HTML page.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", metavar="folder", help="run folders, or folders that contain some")
    parser.add_argument("--out", help="output folder; default: report/ in a single input folder")
    parser.add_argument(
        "--statistic",
        default="mean",
        metavar="{mean,iqm}",
        help="statistic over run seeds: mean, or interquartile mean",
    )
    parser.add_argument(
        "--score",
        metavar=f"{{{','.join(SCORES)}}}",
        help="score that ranks the configurations; default: the first of these that was measured",
    )
    parser.add_argument(
        "--heat-map", nargs=2, metavar="KEY", help="two swept keys; default: both, if exactly two were swept"
    )
    parser.add_argument("--title", help="title of the page; default: the folders' names")
    return parser


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        near = sorted(item.name for item in path.parent.iterdir() if item.is_dir()) if path.parent.is_dir() else []
        there = f"; {path.parent} has {', '.join(near[:8])}{' …' if len(near) > 8 else ''}" if near else ""
        raise ValueError(f"no folder {path}{there}")
    if not path.is_dir():
        raise ValueError(f"{path} is a file: give the folder of a run or of several")
    return path


def _out(text: str | None, roots: Sequence[Path]) -> Path:
    if text is None:
        if len(roots) > 1:
            raise ValueError("--out is needed for more than one folder: use --out <folder>")
        return roots[0] / "report"
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out: {path} is a file: choose another folder")
    if path.is_dir():
        names = [item.name for item in path.iterdir()]
        if is_run(path, names, names):
            raise ValueError(f"--out: {path} is a run folder: choose another one, such as {path / 'report'}")
        if names and PAGE not in names:
            raise ValueError(f"--out: {path} holds other files and no report: choose another folder or a new one")
    return path


def _print(report: Report, page: Path) -> None:
    if report.sweep.configurations:
        console().print(terminal_table(report.sweep, report.statistic, report.score))
    if report.comparison:
        say(f"best {report.score.title}: {verdict(report.comparison, report.sweep)}")
    for folder in report.evaluations:
        say(f"evaluation {folder.path}: {folder.state}")
    for note in report.notes:
        say(f"note: {note}")
    say(f"report: {page}")
