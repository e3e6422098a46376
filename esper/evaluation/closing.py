"""Closing report: tables, files and plots at the end of an evaluation, and of training, which ends with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.console import RenderableType
from rich.text import Text

from esper.config.evaluate import EvaluateConfig
from esper.evaluation.results import (
    Bootstrap,
    ControllerResult,
    FamilyRow,
    RentRow,
    episode_record,
    family_rows,
    network,
    normalized_return,
    rent_rows,
    result_rows,
)
from esper.experiment.build import Experiment
from esper.runtime.controller_names import LEARNED, NEVER, SAMPLED, SCHEDULE_BEST, SCHEDULE_PER_FAMILY
from esper.runtime.files import write_csv
from esper.runtime.provenance import environment_info
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import ConsoleMode, console, say
from esper.telemetry.results import ResultRow, evaluation_fields
from esper.telemetry.statistics import Interval
from esper.views.result_tables import evaluation_tables, write_rows
from esper.views.text import with_spread

BITS_COLUMNS = ("val_bits", "test_bits")
"""Columns of hosts and families that exist for text only."""


def draw_timelines(folder: RunFolder, results: Sequence[ControllerResult]) -> None:
    """Draw ``slot_timeline_<controller>.png`` for each controller that grows."""
    from esper.views.timeline_plot import slot_timeline  # not above: a run does not wait for matplotlib

    for result in results:
        if result.name != NEVER:
            slot_timeline(result.outcomes[0].timeline, folder.plots / f"slot_timeline_{result.name}.png")


def closing_report(
    experiment: Experiment,
    folder: RunFolder,
    controllers: Sequence[Mapping[str, object]],
    record: Mapping[str, object],
    told: Sequence[RenderableType],
    *,
    mode: ConsoleMode,
    elapsed: Callable[[], float],
) -> None:
    """Write ``result.json``, which marks a run as finished, and print tables and lines.

    Args:
        experiment: experiment, whose device is recorded.
        folder: folder of the run or evaluation.
        controllers: rows of the controllers, as plain values.
        record: the rest of the result.
        told: tables and lines, printed unless ``mode`` is off.
        mode: mode of the console.
        elapsed: returns the seconds of the run so far.
    """
    folder.write_result(
        {"controllers": controllers, **record, "wall_seconds": elapsed(), **environment_info(str(experiment.device))}
    )
    if mode is not ConsoleMode.off:
        for part in told:
            console().print(part, soft_wrap=isinstance(part, str | Text))
        minutes, seconds = divmod(round(elapsed()), 60)
        say(f"{minutes} min {seconds} s; everything is in {folder.path}")


def evaluation_report(
    config: EvaluateConfig,
    experiment: Experiment,
    folder: RunFolder,
    results: Sequence[ControllerResult],
    provenance: Mapping[str, object],
    elapsed: Callable[[], float],
) -> None:
    """Write, draw and print the results of an evaluation.

    Args:
        config: configuration of the evaluation.
        experiment: experiment, whose device is recorded.
        folder: folder of the evaluation.
        results: results of the controllers, in the order shown.
        provenance: checkpoints and results of tuning, to record in ``result.json``.
        elapsed: returns the seconds of the evaluation so far.
    """
    _write_hosts(folder, results)  # first, because everything else can be recreated from these
    for result in results:
        result.check_finite()
    strata = experiment.pool(config.split, config.num_hosts).strata()
    bootstrap = Bootstrap(strata=results[0].by_host(strata), draws=config.draws, seed=config.seed)
    rows = result_rows(results, bootstrap)
    rents = [row for result in results for row in rent_rows(result, bootstrap)]
    families = [row for result in results for row in family_rows(result)]
    named = {result.name: result for result in results}
    scaled = None
    if {LEARNED, SCHEDULE_BEST, SCHEDULE_PER_FAMILY} <= named.keys():
        scaled = normalized_return(named[LEARNED], named[SCHEDULE_BEST], named[SCHEDULE_PER_FAMILY])
    write_rows(rows, folder.path / "controllers.csv")
    _write_families(folder, families)
    _draw(folder, results, rows)
    draw_timelines(folder, results)
    names = evaluation_fields(rows)
    closing_report(
        experiment,
        folder,
        [row.to_record(names) for row in rows],
        {
            "families": [_family_record(row) for row in families],
            **({"rents": [_rent_record(row) for row in rents]} if rents else {}),
            "way_to_the_oracle": scaled,
            **provenance,
        },
        [evaluation_tables(rows, config.split.hosts), *_lines(rows, families, rents, scaled)],
        mode=config.console,
        elapsed=elapsed,
    )


def _family_record(row: FamilyRow) -> dict[str, object]:
    """Convert a family's row for ``result.json`` and ``families.csv``."""
    record = asdict(row)
    return {name: value for name, value in record.items() if row.test_bits is not None or name not in BITS_COLUMNS}


def _rent_record(row: RentRow) -> dict[str, object]:
    """Convert a row of a price for ``result.json``."""
    return asdict(row) | {"episode_return": row.episode_return._asdict()}


def _write_hosts(folder: RunFolder, results: Sequence[ControllerResult]) -> None:
    """Write ``hosts.csv``: a line per controller, run and host."""
    records = [
        {"controller": result.name, "run": run, **episode_record(episode), "kept": network(episode.kept)}
        for result in results
        for run, outcome in enumerate(result.outcomes)
        for episode in outcome.episodes
    ]
    columns = [name for name in records[0] if results[0].is_text or name not in BITS_COLUMNS]
    write_csv(folder.path / "hosts.csv", columns, ([record[name] for name in columns] for record in records))


def _write_families(folder: RunFolder, rows: Sequence[FamilyRow]) -> None:
    """Write ``families.csv``: a line per controller and family; kept modules as JSON."""
    records = [_family_record(row) | {"kept": json.dumps(row.kept)} for row in rows]
    write_csv(folder.path / "families.csv", records[0], (record.values() for record in records))


def _draw(folder: RunFolder, results: Sequence[ControllerResult], rows: Sequence[ResultRow]) -> None:
    from esper.views.choices_plot import choice_map
    from esper.views.frontier_plot import ACCURACY, BITS, FLOPS, RETURN, FrontierPoint, frontier

    text = results[0].is_text

    def points(numbers: Callable[[ResultRow], tuple[object, object]]) -> list[FrontierPoint]:
        known = ((row.name, *numbers(row)) for row in rows)
        return [
            FrontierPoint(name=name, cost=cost, score=score)
            for name, cost, score in known
            if isinstance(cost, Interval) and isinstance(score, Interval)
        ]

    by_size = points(lambda row: (row.added_parameters, row.test_bits if text else row.test_accuracy))
    frontier(by_size, folder.plots / "frontier.png", BITS if text else ACCURACY)
    by_compute = points(lambda row: (row.flops_ratio, row.episode_return))
    frontier(by_compute, folder.plots / "frontier_flops.png", RETURN, FLOPS)
    for result in results:
        if result.name != NEVER:
            choice_map(result.kept(), folder.plots / f"choices_{result.name}.png", result.name)


def _lines(
    rows: Sequence[ResultRow], families: Sequence[FamilyRow], rents: Sequence[RentRow], scaled: float | None
) -> list[RenderableType]:
    """Return the notes below the tables."""
    lines: list[RenderableType] = [
        f"  {row.family}: {', '.join(f'{name} {100 * share:.0f} %' for name, share in row.kept.items())}"
        for row in families
        if row.controller == LEARNED
    ]
    if lines:
        lines.insert(0, "what the learned controller kept, by family:")
    for row in rents:
        if row.controller == LEARNED:
            paid = with_spread(row.episode_return, "+.2f")
            lines.append(f"learned, at rent {row.rent_weight:g}: {paid} points, {row.num_fossilized:.1f} modules kept")
    idle = idle_controls(rows)
    if idle:
        line = f"kept nothing on any host, so no rival but a second {NEVER!r}: {', '.join(idle)}"
        lines.append(Text(line, "bold yellow"))
    if scaled is not None:
        lines.append(f"from {SCHEDULE_BEST} (0 %) to {SCHEDULE_PER_FAMILY} (100 %): {100 * scaled:z.0f} %")
    return lines


def idle_controls(rows: Sequence[ResultRow]) -> list[str]:
    """List the rivals of the learned controller that kept no module on any host, and so equal never growing."""
    return [row.name for row in rows if row.name not in (LEARNED, SAMPLED, NEVER) and row.num_fossilized == 0]
