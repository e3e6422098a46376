"""The report as one HTML page that needs nothing else: style, plots and numbers are inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from esper.report.folders import EMPTY, STATES, EvaluationFolder, Run
from esper.report.grouping import Configuration, Sweep
from esper.report.numbers import QUANTITIES, Estimate, Quantity, over_seeds, quantity, wall_seconds
from esper.runtime.run_folder import RunState

CSS = Path(__file__).with_name("page.css")


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page: an ``<svg>`` or ``<img>`` element and the words below it."""

    element: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a page shows.

    Attributes:
        title: of the page.
        made: when, as text.
        sweep: all runs.
        evaluations: evaluation folders found.
        statistic: over run seeds.
        score: what configurations are ranked by.
        notes: what the reader must know to read the numbers right.
        pictures: plots of the sweep.
        timelines: slot timelines.
    """

    title: str
    made: str
    sweep: Sweep
    evaluations: Sequence[EvaluationFolder]
    statistic: str
    score: Quantity
    notes: Sequence[str]
    pictures: Sequence[Picture]
    timelines: Sequence[Picture]


def html(content: Content) -> str:
    """The whole page."""
    body = "\n".join(part for section in _SECTIONS for part in section(content))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="esper.report">
<title>{escape(content.title)}</title>
<link rel="icon" href="data:,">
<style>
{CSS.read_text(encoding="utf-8")}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""


def all_runs(sweep: Sweep) -> list[Run]:
    """Those that count and those that do not."""
    return [run for item in sweep.configurations for run in (*item.runs, *item.repeats)]


def _header(content: Content) -> Iterator[str]:
    runs = all_runs(content.sweep)
    counts = Counter(run.state for run in runs)
    yield f"<header><h1>{escape(content.title)}</h1>"
    swept = ", ".join(f"{axis.key} ({len(axis.values)})" for axis in content.sweep.axes)
    yield f'<p class="lead">Swept: {escape(swept) or "nothing"}. Made {escape(content.made)}.</p></header>'
    yield '<div class="tiles">'
    yield _tile(str(len(runs)), "runs")
    yield _tile(str(len(content.sweep.configurations)), "configurations")
    for state in (*STATES, *sorted(set(counts) - set(STATES))):
        if counts[state]:
            yield _tile(f'<em class="{_state_class(state)}">{counts[state]}</em>', escape(state))
    best = best_configuration(content.sweep, content.score, content.statistic)
    if best is not None and len(content.sweep.configurations) > 1:
        found = over_seeds(best, content.score, content.statistic)
        assert found is not None, "the best one has a score"
        yield _tile(content.score.show(found.value), f"best {content.score.title}: {escape(best.label)}", wide=True)
    yield "</div>"
    if content.notes:
        yield '<div class="card notes"><ul>'
        yield from (f"<li>{escape(note)}</li>" for note in content.notes)
        yield "</ul></div>"


def best_configuration(sweep: Sweep, score: Quantity, statistic: str) -> Configuration | None:
    """The one with the highest score, ``None`` if none has any."""
    found = [(over_seeds(item, score, statistic), item) for item in sweep.configurations]
    known = [(value.value, item) for value, item in found if value is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _tile(number: str, label: str, *, wide: bool = False) -> str:
    return f'<div class="tile{" wide" if wide else ""}"><b>{number}</b><span>{label}</span></div>'


def _state_class(state: str) -> str:
    return "empty-state" if state == EMPTY else escape(state)


def _results(content: Content) -> Iterator[str]:
    sweep, best = content.sweep, best_configuration(content.sweep, content.score, content.statistic)
    if not sweep.configurations:
        return
    name = "mean" if content.statistic == "mean" else "interquartile mean"
    yield "<h2>Results by configuration</h2>"
    yield f'<p class="note">{name.capitalize()} and 95 % interval over run seeds. Held-out numbers are of the learned '
    yield "controller in the closing table, training return of the last tenth of the iterations. FLOPs ratio: training "
    yield "a grown host over training it alone.</p>"
    heads = [axis.key for axis in sweep.axes] or ["configuration"]
    items = [item for item in QUANTITIES if any(over_seeds(c, item, "mean") for c in sweep.configurations)]
    yield '<div class="card scroll"><table class="stack"><thead><tr>'
    yield from (f'<th class="text">{escape(head)}</th>' for head in heads)
    yield from (f"<th>{item.title}<br>{item.unit}</th>" for item in items)
    yield "<th>runs</th></tr></thead><tbody>"
    for configuration in sweep.configurations:
        yield '<tr class="best">' if configuration is best and len(sweep.configurations) > 1 else "<tr>"
        for head, value in zip(heads, configuration.values or (configuration.label,), strict=True):
            yield f'<td class="text" data-label="{escape(head)}">{escape(value)}</td>'
        for item in items:
            found = over_seeds(configuration, item, content.statistic)
            yield f'<td class="value" data-label="{item.title}">{_estimate(found, item, content.statistic)}</td>'
        counts = Counter(run.state for run in configuration.runs)
        words = (f'<span class="state {_state_class(state)}">{n} {escape(state)}</span>' for state, n in counts.items())
        yield f'<td data-label="runs"><span>{"<br>".join(words)}</span></td></tr>'
    yield "</tbody></table></div>"
    along = [(axis.key, axis.along) for axis in sweep.axes if axis.along]
    for key, others in along:
        yield f'<p class="note">Together with <code>{escape(key)}</code> changed: '
        yield ", ".join(f"<code>{escape(other)}</code>" for other in others) + ".</p>"


def _estimate(found: Estimate | None, item: Quantity, statistic: str) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None or not item.outcome:
        return f"<span>{item.show(found.value)}</span>"
    if statistic == "mean":
        return f'<span>{item.show(found.value)} <span class="half">± {item.show_half(found)}</span></span>'
    ends = f"[{item.show(found.low)}, {item.show(found.high)}]"
    return f'<span>{item.show(found.value)} <span class="half">{ends}</span></span>'


def _pictures(content: Content) -> Iterator[str]:
    if content.pictures:
        yield '<h2>Plots</h2><div class="figures">'
        yield from map(_figure, content.pictures)
        yield "</div>"
    if content.timelines:
        yield "<h2>Slot timelines</h2>"
        yield '<p class="note">One episode of the run in the middle of each configuration.</p>'
        yield '<div class="figures wide">'
        yield from map(_figure, content.timelines)
        yield "</div>"


def _figure(picture: Picture) -> str:
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    return f'<figure><div class="scroll">{picture.element}</div>{caption}</figure>'


def _evaluations(content: Content) -> Iterator[str]:
    for folder in content.evaluations:
        yield f'<h2>Evaluation <span class="path">{escape(folder.path.name)}</span></h2>'
        rows = folder.result.get("controllers")
        if not isinstance(rows, list) or not rows:
            yield f"<p>{escape(folder.state)}; it has no results.</p>"
            continue
        known = (
            ("return", "episode_return", "+z.2f", 1.0),
            ("learned − it", "return_difference", "+z.2f", 1.0),
            ("test accuracy %", "test_accuracy", ".1f", 100.0),
            ("test bits per byte", "test_bits", ".3f", 1.0),
            ("added parameters", "added_parameters", ",.0f", 1.0),
        )
        columns = [column for column in known if any(row.get(column[1]) for row in rows)]
        yield '<p class="note">Estimate and 95 % interval over run seeds and held-out hosts.</p>'
        yield '<div class="card scroll"><table class="stack"><thead><tr><th class="text">controller</th>'
        yield "".join(f"<th>{title}</th>" for title, *_ in columns) + "</tr></thead><tbody>"
        for row in rows:
            yield f'<tr><td class="text" data-label="controller">{escape(str(row.get("name")))}</td>'
            for title, key, spec, scale in columns:
                found = row.get(key)
                item = Quantity(key, title, lambda run: None, spec, scale)
                value = Estimate(found["estimate"], found["low"], found["high"], 0) if isinstance(found, dict) else None
                yield f'<td class="value" data-label="{title}">{_estimate(value, item, "interval")}</td>'
            yield "</tr>"
        yield "</tbody></table></div>"


def _runs(content: Content) -> Iterator[str]:
    runs = all_runs(content.sweep)
    if not runs:
        return
    yield "<h2>Runs</h2>"
    heads = ("folder", "seed", "state", "iterations", content.score.title, "wall time, s", "remarks")
    words = ("folder", "remarks")
    yield '<div class="card scroll"><table class="stack"><thead><tr>'
    yield "".join(f'<th class="text">{head}</th>' if head in words else f"<th>{head}</th>" for head in heads)
    yield "</tr></thead><tbody>"
    for configuration in content.sweep.configurations:
        for repeated, members in ((False, configuration.runs), (True, configuration.repeats)):
            for run in members:
                cells = _run_cells(run, content.score, repeated=repeated)
                yield "<tr>" + "".join(
                    f'<td class="{"text" if head in words else ""}" data-label="{head}">{text}</td>'
                    for head, text in zip(heads, cells, strict=True)
                )
                yield "</tr>"
    yield "</tbody></table></div>"
    for run in runs:
        trace = run.status.get("traceback")
        if run.state == RunState.FAILED and trace:
            yield f'<details><summary>Traceback of <span class="path">{escape(run.path.name)}</span></summary>'
            yield f"<pre>{escape(str(trace))}</pre></details>"


def _run_cells(run: Run, score: Quantity, *, repeated: bool) -> tuple[str, ...]:
    remarks = [*([run.error] if run.error else []), *run.notes]
    if repeated:
        remarks.append("not counted: another run has the same configuration and seed")
    return (
        f'<span class="path">{escape(run.path.name)}</span>',
        "–" if run.seed is None else str(run.seed),
        f'<span class="state {_state_class(run.state)}">{escape(run.state)}</span>',
        str(len(run.metrics)),
        score.show(score.of(run)),
        quantity("wall_seconds").show(wall_seconds(run)),
        f"<span>{escape('; '.join(remarks)) or '–'}</span>",
    )


def _origin(content: Content) -> Iterator[str]:
    runs = all_runs(content.sweep)
    if not runs:
        return
    yield "<h2>Where this comes from</h2>"
    for title, key in (("commit", "git_sha"), ("device", "device_name"), ("platform", "platform")):
        values = sorted({str(run.result[key]) for run in runs if run.result.get(key)})
        if values:
            yield f'<p><span class="key">{title}:</span> {escape(", ".join(values))}</p>'
    dirty = sum(run.result.get("git_dirty") is True for run in runs)
    if dirty:
        yield f"<p>{dirty} of {len(runs)} runs were made from a checkout with uncommitted changes.</p>"
    folders = sorted({str(run.path.parent) for run in runs})
    yield f'<p><span class="key">folders:</span> <span class="path">{escape(", ".join(folders))}</span></p>'
    if content.sweep.common:
        yield f"<details><summary>What all runs have in common ({len(content.sweep.common)} keys)</summary>"
        yield '<ul class="pairs">'
        for key, value in content.sweep.common.items():
            yield f"<li><code>{escape(key)}={escape(value)}</code></li>"
        yield "</ul></details>"


_SECTIONS = (_header, _results, _pictures, _evaluations, _runs, _origin)
