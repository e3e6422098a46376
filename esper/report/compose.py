"""Composition of a report from folders to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from esper.report import figures, tables
from esper.report.comparison import Comparison, compare
from esper.report.folders import EvaluationFolder, Run, find, read
from esper.report.grouping import Configuration, Sweep, arrange
from esper.report.numbers import SCORES, Quantity, over_seeds, quantity
from esper.report.page import Content, Picture, all_runs, embedded, html
from esper.report.refusals import by_reason
from esper.report.timelines import timelines
from esper.report.vector import to_svg
from esper.runtime.files import write_atomic
from esper.runtime.run_folder import RunState
from esper.telemetry.metric_names import CHOICE_SHARE, NEVER, RETURN, STAGE_SHARE, VAL
from esper.views.drawing import Figure
from esper.views.palette import CONFIGURATION_COLOURS, OP_COLOURS, STAGE_COLOURS
from esper.views.plots import save

PAGE = "index.html"
WIDE = ("scores", "heat_map")
"""Plots with a whole row; the others come in pairs."""
SHOWN = len(CONFIGURATION_COLOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Content of a report before it is written.

    Attributes:
        sweep: all runs.
        evaluations: evaluation folders.
        statistic: statistic over run seeds.
        score: score that ranks the configurations.
        heat: two swept keys for a heat map, or none.
        comparison: the best configuration against the others; ``None`` if there is none to compare.
        notes: remarks for the reader.
    """

    sweep: Sweep
    evaluations: tuple[EvaluationFolder, ...]
    statistic: str
    score: Quantity
    heat: tuple[str, str] | None
    comparison: Comparison | None
    notes: tuple[str, ...]


def gather(
    roots: Sequence[Path], *, statistic: str, score: str | None = None, heat: tuple[str, str] | None = None
) -> Report:
    """Read all folders at or below ``roots``.

    Args:
        roots: run folders, sweep folders, or folders with several of either.
        statistic: ``mean`` or ``iqm``.
        score: score that ranks the configurations; default: the first of :data:`SCORES` that any run has.
        heat: swept keys of the heat map; default: the two swept keys if there are exactly two.

    Raises:
        ValueError: there is no run, or a key of ``heat`` was not swept.
    """
    found = [read(path) for path in find(roots)]
    if not found:
        raise ValueError(
            f"no run in {', '.join(map(str, roots))}: a run folder has status.json, metrics.jsonl, or config.yaml with "
            "checkpoints/; give such a folder or one above it"
        )
    runs = [item for item in found if isinstance(item, Run)]
    sweep = arrange(runs)
    keys = [axis.key for axis in sweep.axes]
    for key in heat or ():
        if key not in keys:
            raise ValueError(f"--heat-map: {key!r} was not swept; choose two from {', '.join(keys) or 'none'}")
    if heat is None and len(keys) == 2:
        heat = keys[0], keys[1]
    chosen = quantity(score) if score else _first_measured(runs)
    notes = tuple(_notes(sweep, statistic, chosen, asked=score is not None))
    evaluations = tuple(item for item in found if isinstance(item, EvaluationFolder))
    return Report(
        sweep=sweep,
        evaluations=evaluations,
        statistic=statistic,
        score=chosen,
        heat=heat,
        comparison=compare(sweep, chosen, statistic),
        notes=notes,
    )


def _first_measured(runs: Sequence[Run]) -> Quantity:
    for name in SCORES:
        if any(quantity(name).of(run) is not None for run in runs):
            return quantity(name)
    return quantity(SCORES[0])


def _notes(sweep: Sweep, statistic: str, score: Quantity, *, asked: bool) -> Iterator[str]:
    runs = all_runs(sweep)
    for state, what in (
        (RunState.FAILED, "failed"),
        (RunState.PREEMPTED, "preempted"),
        (RunState.RUNNING, "still running"),
        ("killed", "killed: their process ended without recording it"),
        ("empty", "empty: nothing was recorded"),
        ("unknown", "of unknown state: they have no status.json that can be read"),
    ):
        names = [run.path.name for run in runs if run.state == state and not run.overrides]
        if names:
            yield f"{len(names)} of {len(runs)} runs {what}: {', '.join(names)}"
    for reason, names in by_reason(runs).items():
        yield f"{len(names)} of {len(runs)} runs refused ({', '.join(names)}): {reason}"
    if score.name != SCORES[0] and not asked and runs:
        yield f"no run has a {quantity(SCORES[0]).title} yet: configurations are ranked by {score.title}"
    counts = [found.num_seeds for item in sweep.configurations if (found := over_seeds(item, score, statistic))]
    single = sum(count == 1 for count in counts)
    if single:
        whose = "there is" if single == len(counts) else f"{single} of {len(counts)} configurations have"
        yield f"{whose} one run seed only, so no interval: another seed may give another number"
    if counts and len(set(counts)) > 1:
        yield f"configurations have different numbers of run seeds ({min(counts)} to {max(counts)})"
    repeats = [run.path.name for item in sweep.configurations for run in item.repeats]
    if repeats:
        yield f"not counted, as another run has the same configuration and seed: {', '.join(repeats)}"
    if len(figures.coloured(sweep, score, statistic)) < len(sweep.configurations):
        yield f"learning curves show the {SHOWN} configurations of highest {score.title} in colour, others in grey"
    for run in runs:
        if run.notes:
            yield f"{run.path.name}: {'; '.join(run.notes)}"


def write(report: Report, out: Path, title: str) -> Path:
    """Write CSV files, PNGs and the page; return the path of the page.

    Args:
        report: content of the report.
        out: folder, created if necessary.
        title: title of the page.

    Raises:
        OSError: it cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    pictures: list[Picture] = []
    drawn: list[Picture] = []
    if report.sweep.configurations:
        tables.write_configurations(report.sweep, report.statistic, out / "configurations.csv")
        tables.write_runs(report.sweep, out / "runs.csv")
        tables.write_curves(report.sweep, report.statistic, out / "curves.csv")
        pictures = [_picture(name, figure, caption, out, wide=name in WIDE) for name, figure, caption in _plots(report)]
        drawn = list(_timelines(report, out))
    content = Content(
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        sweep=report.sweep,
        evaluations=report.evaluations,
        statistic=report.statistic,
        score=report.score,
        comparison=report.comparison,
        notes=report.notes,
        pictures=pictures,
        timelines=drawn,
    )
    path = out / PAGE
    write_atomic(path, html(content))
    return path


def _plots(report: Report) -> Iterator[tuple[str, Figure, str]]:
    sweep, score, statistic = report.sweep, report.score, report.statistic
    shown = figures.best(sweep, score, statistic, SHOWN)
    name = "mean" if statistic == "mean" else "interquartile mean"
    several = any(len(item.runs) > 1 for item in sweep.configurations)
    band = (
        f"Line: {name} over run seeds; band: its 95 % interval, where there are two seeds or more." if several else ""
    )
    lines = figures.coloured(sweep, score, statistic)
    curves = figures.learning_curves(
        sweep, lines, RETURN, "Episodic return in training", "return (points)", statistic, never=0.0
    )
    yield "learning_curves", curves, f"Points gained on never-grown twins, rent paid. {band}".rstrip()
    accuracy = figures.learning_curves(
        sweep, lines, VAL, "Final val accuracy in training", "val accuracy", statistic, never=NEVER
    )
    yield "accuracy_curves", accuracy, f"Val accuracy of hosts at the end of their episodes. {band}".rstrip()
    if len(sweep.configurations) > 1:
        caption = f"Dots: run seeds; diamonds: {name} with its 95 % interval over seeds."
        yield "scores", figures.scores(sweep, score, statistic), caption
    if report.heat:
        caption = f"{name.capitalize()} over all runs of a cell, half its 95 % interval, number of runs."
        yield "heat_map", figures.heat_map(sweep, score, statistic, *report.heat), caption
    for slug, prefix, colours, what in (
        ("ops", CHOICE_SHARE, OP_COLOURS, "Op mix, where there is a choice"),
        ("stages", STAGE_SHARE, STAGE_COLOURS, "Slots by stage"),
    ):
        whole = "steps with a choice" if prefix == CHOICE_SHARE else "slots, over environments and steps"
        caption = f"Shares of {whole}{', mean over run seeds' if several else ''}."
        yield f"{slug}_over_time", figures.mix_over_time(sweep, shown, prefix, colours, what), caption
        if len(shown) > 1:
            yield f"{slug}_at_end", figures.mix_at_end(shown, prefix, colours, f"{what}, at the end"), caption


def _picture(name: str, figure: Figure, caption: str, out: Path, *, wide: bool) -> Picture:
    save(figure, out / "plots" / f"{name}.png")
    figure.set_layout_engine("none")  # computes the layout, which costs as much as drawing
    return Picture(to_svg(figure, name, caption), caption, wide)


def _timelines(report: Report, out: Path) -> Iterator[Picture]:
    shown: list[Configuration] = figures.best(report.sweep, report.score, report.statistic, figures.MAX_PANELS)
    for number, found in enumerate(timelines(shown, report.score), start=1):
        if found.figure is not None:
            yield _picture(f"timeline_{number}", found.figure, found.caption, out, wide=True)
        else:
            assert found.png is not None, "a timeline is drawn, or has a picture"
            yield embedded(found.png, found.caption, wide=True)
