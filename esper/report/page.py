"""The report as one self-contained HTML page: style, plots and numbers are embedded."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from esper.report.comparison import Comparison, verdict
from esper.report.folders import STATES, EvaluationFolder, Run
from esper.report.grouping import Configuration, Sweep
from esper.report.numbers import QUANTITIES, Estimate, Quantity, over_seeds, quantity, wall_seconds
from esper.runtime.controller_names import LEARNED
from esper.views.text import formatted

ENVIRONMENT = Environment(
    loader=PackageLoader("esper.report"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)

JUDGED = (
    Quantity("episode_return", "return", lambda run: None, "+.2f"),
    Quantity("return_difference", "learned − it", lambda run: None, "+.2f"),
    Quantity("val_accuracy", "val accuracy %", lambda run: None, ".1f", 100, accuracy=True),
    Quantity("test_accuracy", "test accuracy %", lambda run: None, ".1f", 100, accuracy=True),
    Quantity("test_bits", "test bits per byte", lambda run: None, ".3f"),
    Quantity("added_parameters", "added parameters", lambda run: None, ",.0f"),
    Quantity("num_fossilized", "modules kept", lambda run: None, ".1f"),
    Quantity("flops_ratio", "training FLOPs / host alone", lambda run: None, ".2f"),
)
"""Columns of an evaluation's table, looked up by name in its results."""


RIVALS = (
    Quantity("episode_return", "return", lambda run: None, "+.2f"),
    Quantity("return_difference", "learned − it", lambda run: None, "+.2f"),
    Quantity("val_accuracy", "val accuracy %", lambda run: None, ".1f", 100),
    Quantity("test_accuracy", "test accuracy %", lambda run: None, ".1f", 100),
    Quantity("added_parameters", "added parameters", lambda run: None, ",.0f"),
    Quantity("num_fossilized", "modules kept", lambda run: None, ".1f"),
)
"""Columns of a run's closing table, looked up by name in its results."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page: an element with an ``<svg>`` or ``<img>``, its caption, and whether it has a whole row."""

    element: str
    caption: str
    wide: bool


def embedded(png: Path, caption: str, *, wide: bool) -> Picture:
    """Return a picture from a file, as part of the page, as wide as there is room.

    A click shows it at full size, and another one not: browsers open no link to embedded data, and the page has no
    scripts, so the picture is the label of a hidden checkbox.
    """
    text = base64.b64encode(png.read_bytes()).decode("ascii")
    image = f'<img alt="" src="data:image/png;base64,{text}">'
    box = '<input type="checkbox" aria-label="Full size">'
    return Picture(f'<label class="enlarge">{box}{image}</label>', caption, wide)


EVALUATED = (
    ("frontier.png", "Score against added parameters", False),
    ("frontier_flops.png", "Return against training FLOPs", False),
    ("choices_learned.png", "Modules that the learned controller kept, by host family", True),
    ("slot_timeline_learned.png", "One held-out host under the learned controller", True),
)
"""Pictures of an evaluation, their captions, and whether they have a whole row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Part of a page about one evaluation.

    Attributes:
        folder: its folder.
        titles: heads of its table.
        rows: each controller, with its cells: a value and its interval.
        pictures: those that it has drawn.
    """

    folder: EvaluationFolder
    titles: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a page.

    Attributes:
        title: title of the page.
        made: time of creation, as text.
        sweep: all runs.
        evaluations: evaluation folders.
        statistic: statistic over run seeds.
        score: score that ranks the configurations.
        comparison: the best configuration against the others; ``None`` if there is none to compare.
        notes: remarks that the reader needs to interpret the numbers.
        pictures: plots of the sweep.
        timelines: slot timelines.
    """

    title: str
    made: str
    sweep: Sweep
    evaluations: Sequence[EvaluationFolder]
    statistic: str
    score: Quantity
    comparison: Comparison | None
    notes: Sequence[str]
    pictures: Sequence[Picture]
    timelines: Sequence[Picture]


def html(content: Content) -> str:
    """Fill the template ``page.html.j2``; text is escaped."""
    sweep = content.sweep
    runs = all_runs(sweep)
    counts = _states(runs)
    found = content.comparison
    return ENVIRONMENT.get_template("page.html.j2").render(
        page=content,
        sweep=sweep,
        runs=runs,
        states=[(state, counts[state]) for state in (*STATES, *sorted(set(counts) - set(STATES))) if counts[state]],
        best=found.best if found else None,
        best_score=content.score.show(found.value if found else None),
        verdict=verdict(found, sweep) if found else "",
        leads=[_shown(lead, content.score.difference, "mean") for lead in found.leads] if found else [],
        heads=[axis.key for axis in sweep.axes] or ["configuration"],
        quantities=[q for q in QUANTITIES if any(over_seeds(item, q, "mean") for item in sweep.configurations)],
        rival_titles=[item.title for item in RIVALS],
        cell=partial(_cell, statistic=content.statistic),
        count_states=_states,
        evaluations=[_evaluation(folder) for folder in content.evaluations],
        seconds=lambda run: quantity("wall_seconds").show(wall_seconds(run)),
        remarks=_remarks,
        rivals=_rivals(runs[0]) if len(runs) == 1 else [],
        origin=list(_origin(runs)),
        dirty=sum(run.result.get("git_dirty") is True for run in runs),
        folders=", ".join(sorted({str(run.path.parent) for run in runs})),
    )


def _rivals(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the rows of a run's closing table: each controller, and its cells for :data:`RIVALS`."""
    rows, differences = run.result.get("controllers"), run.result.get("return_differences")
    found = []
    for row in rows if isinstance(rows, list) else []:
        lead = differences.get(f"{LEARNED} - {row.get('name')}") if isinstance(differences, dict) else None
        cells = {**row, "return_difference": lead}
        found.append((str(row.get("name")), [_mean(cells.get(item.name), item) for item in RIVALS]))
    return found


def _mean(found: Any, item: Quantity) -> tuple[str, str]:
    """Format a mean and its standard error."""
    if not isinstance(found, dict) or found.get("mean") is None:
        return "", ""
    error = found.get("sem")
    return item.show(
        found["mean"]
    ), "" if error is None else f"± {formatted(error * item.scale, item.spec.lstrip('+'))}"


def all_runs(sweep: Sweep) -> list[Run]:
    """Return all runs, including repeats that are ignored."""
    return [run for item in sweep.configurations for run in (*item.runs, *item.repeats)]


def _states(runs: Sequence[Run]) -> Counter[str]:
    return Counter(run.state for run in runs)


def _cell(configuration: Configuration, item: Quantity, *, statistic: str) -> tuple[str, str]:
    """Format an estimate and its interval."""
    return _shown(over_seeds(configuration, item, statistic), item, statistic)


def _shown(found: Estimate | None, item: Quantity, statistic: str) -> tuple[str, str]:
    return ("", "") if found is None else (item.show(found.value), item.show_interval(found, statistic))


def _evaluation(folder: EvaluationFolder) -> Evaluated:
    """Return the table of an evaluation, without columns that were not measured, and its pictures."""
    found: Any = folder.result.get("controllers")
    rows = found if isinstance(found, list) else []
    columns = [item for item in JUDGED if any(row.get(item.name) is not None for row in rows)]
    plots = [(folder.path / "plots" / name, caption, wide) for name, caption, wide in EVALUATED]
    return Evaluated(
        folder=folder,
        titles=[item.title for item in columns],
        rows=[(str(row.get("name")), [_judged(row.get(item.name), item) for item in columns]) for row in rows],
        pictures=[embedded(path, caption, wide=wide) for path, caption, wide in plots if path.is_file()],
    )


def _judged(found: Any, item: Quantity) -> tuple[str, str]:
    if isinstance(found, dict):
        return _shown(Estimate(found["estimate"], found["low"], found["high"], 0), item, "interval")
    return ("", "") if found is None else (item.show(float(found)), "")


def _remarks(run: Run, repeated: bool) -> str:
    remarks = [*([run.error] if run.error else []), *run.notes]
    if repeated:
        remarks.append("not counted: another run has the same configuration and seed")
    return "; ".join(remarks)


def _origin(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    for title, key in (("commit", "git_sha"), ("device", "device_name"), ("platform", "platform")):
        values = sorted({str(run.result[key]) for run in runs if run.result.get(key)})
        if values:
            yield title, ", ".join(values)
