"""Reports and views of folders that are damaged, or no runs; the dashboard."""

from __future__ import annotations

from typing import Any

from tests.attacks.attack import Attack, fails, goes_on, refused

DONE = {"outputs/done": "finished"}


def reported(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal of a report."""
    return refused(name, f"esper.report {words}", says, **{"given": ("done", "stopped", "judged"), **more})


def damaged_report(name: str, file: str, content: str | bytes, says: str) -> Attack:
    """Expect a report as far as possible, with a note."""
    return goes_on(
        name, "esper.report outputs/done", says, given=("done",), files={f"outputs/done/{file}": content}, runs={}
    )


def damaged_view(name: str, file: str, content: str | bytes, says: str = "") -> Attack:
    """Expect a view as far as possible."""
    return goes_on(
        name, "esper.watch --once outputs/done", says, given=("done",), runs={}, files={f"outputs/done/{file}": content}
    )


def watched(name: str, words: str, says: str, **more: Any) -> Attack:
    """Expect a refusal to watch."""
    return refused(name, f"esper.watch {words}", says, **{"given": ("done", "stopped", "judged"), **more})


ATTACKS = [
    reported("report of nowhere", "nowhere", "no folder nowhere; . has outputs"),
    reported("report of a file", "outputs/done/config.yaml", "config.yaml is a file: give the folder of a run"),
    reported("report of an empty folder", "e", "no run in e: a run folder has status.json", files={"e/x": ""}),
    reported("statistic misspelt", "outputs/done --statistic median", "unknown 'median'.*; choose from mean"),
    reported("score misspelt", "outputs/done --score nope", "--score: unknown 'nope'; choose from held_out_return"),
    reported("heat map of what was not swept", "outputs/done --heat-map a b", "--heat-map: 'a' was not swept"),
    reported("report into a run", "outputs/done --out outputs/stopped", "--out: outputs/stopped is a run folder"),
    reported("report into a file", "outputs/done --out /dev/null", "--out: /dev/null is a file: choose another folder"),
    reported("report of two", "outputs/done outputs/stopped", "--out is needed for more than one folder"),
    fails(
        "report below a file",
        "esper.report outputs/done --out outputs/done/config.yaml/x",
        r"the report cannot be written to .* \(Not a directory\)",
        given=("done",),
    ),
    fails(
        "report on a full disk",
        "ulimit -f 10; esper.report outputs/done --out r; code=$?; rm -rf r; exit $code",
        r"the report cannot be written to r \(File too large\)",
        given=("done",),
    ),
    damaged_report("half a line of metrics", "metrics.jsonl", '{"iteration": 1', "metrics.jsonl: 1 line is incomplete"),
    damaged_report("bytes for metrics", "metrics.jsonl", b"\xff\xfe\n", "metrics.jsonl: 1 line is incomplete"),
    damaged_report("bytes for events", "events.jsonl", b"\xff\xfe\n", "report: outputs/done/report/index.html"),
    damaged_report("a list for a result", "result.json", "[]", "result.json is not a table of keys and values"),
    damaged_report("half a result", "result.json", "{", "result.json cannot be read"),
    damaged_report("a number for controllers", "result.json", '{"controllers": 3}', "report: outputs/done/report"),
    damaged_report("half a status", "status.json", "{", "status.json cannot be read"),
    damaged_report("a state that is none", "status.json", '{"state": 3}', "1 of 1 runs of unknown state"),
    damaged_report("half a configuration", "config.yaml", "a: [", "config.yaml cannot be read"),
    goes_on(
        "markup in a title",
        "esper.report --title '<script>[x]' outputs/done && grep -c '&lt;script&gt;' outputs/done/report/index.html",
        "report: outputs/done/report/index.html",
        given=("done",),
        runs=DONE,
    ),
    goes_on(
        "report of a folder with brackets",
        "mv outputs/done 'a [b] c'; esper.report 'a [b] c'",
        r"report: a \[b\] c/report/index.html",
        given=("done",),
        runs={},
    ),
    watched("view of nowhere", "nowhere", "nowhere does not exist: give a run folder"),
    watched("view of a file", "outputs/done/config.yaml", "config.yaml is a file: give a run folder"),
    watched("view of several runs", "outputs", "outputs holds 3 runs: watch one of outputs/done"),
    watched("interval of zero", "outputs/done --interval 0", "--interval must be between 0.05 and 3600 seconds, got 0"),
    watched("interval that is no number", "outputs/done --interval nan", "--interval must be between .*, got nan"),
    damaged_view("view without metrics", "metrics.jsonl", "", "finished"),
    damaged_view("view of bytes", "metrics.jsonl", b"\xff\xfe\n", "finished"),
    damaged_view("view of metrics of text", "metrics.jsonl", '{"iteration": "x"}\n', "were invalid"),
    damaged_view("view with half a status", "status.json", "{", "done"),
    damaged_view("view with a list for a configuration", "config.yaml", "- 3", "finished"),
    damaged_view("view of events of others", "events.jsonl", '{"kind": 3}\n', "finished"),
    Attack(
        name="view of a preempted run",
        bash="esper.watch outputs/stopped",
        says="preempted after 1 iterations",
        code=3,
        given=("stopped",),
        where="both",
        silent=True,
    ),
    Attack(
        name="view is interrupted",
        bash="mkdir e; at waiting INT -- esper.watch e",
        says="waiting: nothing",
        code=130,
        where="both",
        silent=True,
        runs={},
    ),
    Attack(name="dashboard of nobody", bash="esper.dashboard", says="required: --entity", lines=4),
    fails("dashboard without an account", "esper.dashboard --entity me", "nobody is logged in: run wandb login"),
]
