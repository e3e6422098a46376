"""Destinations of output: closed pipes, full disks, terminals with few columns or characters. None affects the work."""

from __future__ import annotations

from tests.attacks.attack import Attack, goes_on

DONE = {"outputs/done": "finished"}


def into(name: str, bash: str, says: str = "") -> Attack:
    """Expect a finished run, whatever the destination of its output."""
    return goes_on(name, bash, says)


def shown(name: str, bash: str, says: str = "") -> Attack:
    """Expect a report or a view, whatever the destination of its output."""
    return goes_on(name, bash, says, given=("done",), runs=DONE)


PIPED = "exit ${PIPESTATUS[0]}"

ATTACKS = [
    into("run into head", f"esper.train $tiny | head -1; {PIPED}", ": preset=smoke"),
    into("run into nothing", f"esper.train $tiny | true; {PIPED}"),
    into("run with its errors into nothing", f"esper.train $tiny 2>&1 | true; {PIPED}"),
    into("run onto a full disk", "esper.train $tiny > /dev/full"),
    into("run with both onto a full disk", "esper.train $tiny > /dev/full 2>&1"),
    into("run with standard output closed", "esper.train $tiny >&-"),
    into("run with all closed", "esper.train $tiny <&- >&- 2>&-"),
    into("run in ASCII", "PYTHONIOENCODING=ascii esper.train $tiny", "finished|everything is in"),
    into("run in Latin 1", "PYTHONIOENCODING=latin-1 esper.train $tiny", "everything is in"),
    into("run in UTF-16", "PYTHONIOENCODING=utf-16 esper.train $tiny"),
    into("run drawn in ASCII", "PYTHONIOENCODING=ascii terminal 80 esper.train $tiny", "outputs/"),
    into("run drawn in 40 columns", "terminal 40 esper.train $tiny", "outputs/"),
    into("run drawn in one column", "terminal 1 esper.train $tiny"),
    into("run on a dumb terminal", "TERM=dumb terminal 80 esper.train $tiny", "everything is in"),
    into("run on a terminal of no type", "TERM= terminal 80 esper.train $tiny"),
    into("run with columns of no number", "COLUMNS=x esper.train $tiny", "everything is in"),
    into("run with no columns", "COLUMNS=0 esper.train $tiny"),
    into(
        "run from a notebook",
        "MPLBACKEND=module://matplotlib_inline.backend_inline esper.train $tiny telemetry.plots=true",
        "everything is in",
    ),
    into("run with a backend misspelt", "MPLBACKEND=nope esper.train $tiny telemetry.plots=true", "everything is in"),
    goes_on(
        "markup in a path",
        "esper.train $tiny 'hydra.run.dir=\"a[x]/b[/red]\"'",
        r"everything is in .*a\[x\]/b\[/red\]",
        runs={"a*/*/*": "finished"},
    ),
    goes_on("two ranks into head", f"esper.train $tiny devices=[cpu,cpu] | head -1; {PIPED}", ": preset=smoke"),
    shown("report into nothing", f"esper.report outputs/done | true; {PIPED}"),
    shown("report onto a full disk", "esper.report outputs/done > /dev/full"),
    shown("report in ASCII", "PYTHONIOENCODING=ascii esper.report outputs/done", "outputs/done/report/index.html"),
    shown("report in 40 columns", "terminal 40 esper.report outputs/done", "finished"),
    shown("report from a notebook", "MPLBACKEND=module://matplotlib_inline.backend_inline esper.report outputs/done"),
    shown("view into nothing", f"esper.watch outputs/done | true; {PIPED}"),
    shown("view onto a full disk", "esper.watch outputs/done > /dev/full"),
    shown("view in ASCII", "PYTHONIOENCODING=ascii esper.watch outputs/done", "finished"),
    shown("view at once in Latin 1", "PYTHONIOENCODING=latin-1 esper.watch --once outputs/done", "finished"),
    shown("view drawn in 40 columns", "terminal 40 esper.watch outputs/done", "finished"),
    shown("help into nothing", f"esper.train --help | true; {PIPED}"),
    shown("configuration into nothing", f"esper.train --cfg job | true; {PIPED}"),
    shown("dashboard into head", f"esper.dashboard --entity me --print | head -1; {PIPED}"),
]
