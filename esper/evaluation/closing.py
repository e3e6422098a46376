"""The end of an evaluation: tables, files and plots."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from esper.config.evaluate import EvaluateConfig
from esper.config.root import Console as ConsoleMode
from esper.evaluation.results import LEARNED, SAMPLED, FamilyRow, Judge, Standing, family_rows, way_to_the_oracle
from esper.experiment.build import Laboratory
from esper.runtime.files import replacing
from esper.runtime.provenance import environment_info
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import console, say
from esper.views.choices_plot import choice_map
from esper.views.evaluation import OF_TEXT, EvaluationRow, evaluation_tables, write_csv
from esper.views.frontier_plot import ACCURACY, BITS, FrontierPoint, frontier
from esper.views.timeline_plot import slot_timeline

NEVER = "never"

HOSTS_COLUMNS = (
    "controller",
    "run",
    "instance",
    "family",
    "episode_return",
    "val_accuracy",
    "test_accuracy",
    "val_bits",
    "test_bits",
    "added_parameters",
    "relative_flops",
    "num_germinated",
    "num_fossilized",
    "kept",
    "crashed",
)
BITS_COLUMNS = ("val_bits", "test_bits")
"""Columns of hosts and families that only text has."""


def closing_report(
    config: EvaluateConfig,
    laboratory: Laboratory,
    folder: RunFolder,
    standings: Sequence[Standing],
    provenance: Mapping[str, object],
    wall_seconds: float,
) -> None:
    """Write, draw and print what came out of an evaluation.

    Args:
        config: of the evaluation.
        laboratory: whose slots the timelines show.
        folder: where to.
        standings: controllers, in the order shown.
        provenance: for ``result.json``: checkpoints, and what tuning found.
        wall_seconds: of the whole evaluation.
    """
    _write_hosts(folder, standings)  # first: from these everything else could be made again
    for standing in standings:
        standing.check_finite()
    judge = Judge(strata=standings[0].families(), draws=config.draws, seed=config.seed)
    named = {standing.name: standing for standing in standings}
    rows = [judge.row(standing, named.get(LEARNED), named.get(NEVER)) for standing in standings]
    families = [row for standing in standings for row in family_rows(standing)]
    way = None
    if {LEARNED, "schedule_best", "schedule_per_family"} <= named.keys():
        way = way_to_the_oracle(named[LEARNED], named["schedule_best"], named["schedule_per_family"])
    write_csv(rows, folder.path / "controllers.csv")
    _write_families(folder, families)
    _draw(laboratory, folder, standings, rows)
    folder.write_result(
        {
            "controllers": [_record(row) for row in rows],
            "families": [_family_record(row) for row in families],
            "way_to_the_oracle": way,
            "wall_seconds": wall_seconds,
            **provenance,
            **environment_info(str(laboratory.device)),
        }
    )
    if config.console is not ConsoleMode.off:
        _print(folder, rows, families, way, wall_seconds)


def _record(row: EvaluationRow) -> dict[str, object]:
    """A row for ``result.json``: each interval as ``{"estimate": ..., "low": ..., "high": ..., "over_runs": ...}``."""
    text = row.test_bits is not None
    values = {field.name: getattr(row, field.name) for field in fields(row) if text or field.name not in OF_TEXT}
    return {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in values.items()}


def _family_record(row: FamilyRow) -> dict[str, object]:
    """A family's row for ``result.json`` and ``families.csv``."""
    record = asdict(row)
    return {name: value for name, value in record.items() if row.test_bits is not None or name not in BITS_COLUMNS}


def _write_hosts(folder: RunFolder, standings: Sequence[Standing]) -> None:
    """``hosts.csv``: a line per controller, run and host."""
    with replacing(folder.path / "hosts.csv") as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        columns = [name for name in HOSTS_COLUMNS if standings[0].is_text or name not in BITS_COLUMNS]
        writer.writerow(columns)
        for standing in standings:
            for run, outcome in enumerate(standing.outcomes):
                for episode in outcome.episodes:
                    kept = "+".join(f"{slot}:{kind}" for slot, kind in episode.kept)
                    instance = {"instance": episode.instance.index, "family": episode.instance.family, "kept": kept}
                    own = {"controller": standing.name, "run": run, **instance}
                    writer.writerow([own[name] if name in own else getattr(episode, name) for name in columns])


def _write_families(folder: RunFolder, rows: Sequence[FamilyRow]) -> None:
    """``families.csv``: a line per controller and family; what was kept as JSON."""
    with replacing(folder.path / "families.csv") as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        records = [_family_record(row) for row in rows]
        writer.writerow(records[0])
        for record in records:
            writer.writerow([json.dumps(value) if name == "kept" else value for name, value in record.items()])


def _draw(
    laboratory: Laboratory, folder: RunFolder, standings: Sequence[Standing], rows: Sequence[EvaluationRow]
) -> None:
    text = standings[0].is_text
    scores = [(row, row.test_bits if text else row.test_accuracy) for row in rows]
    points = [
        FrontierPoint(name=row.name, added_parameters=row.added_parameters, test=score)
        for row, score in scores
        if row.added_parameters is not None and score is not None
    ]
    frontier(points, folder.plots / "frontier.png", BITS if text else ACCURACY)
    for standing in standings:
        if standing.name == NEVER:
            continue
        choice_map(standing.kept(), folder.plots / f"choices_{standing.name}.png", standing.name)
        timeline = standing.outcomes[0].timeline
        slot_timeline(timeline, folder.plots / f"slot_timeline_{standing.name}.png", laboratory.slot_ids)


def _print(
    folder: RunFolder,
    rows: Sequence[EvaluationRow],
    families: Sequence[FamilyRow],
    way: float | None,
    wall_seconds: float,
) -> None:
    console().print(evaluation_tables(rows, "held-out hosts"))
    lines = [
        f"  {row.family}: {', '.join(f'{name} {100 * share:.0f} %' for name, share in row.kept.items())}"
        for row in families
        if row.controller == LEARNED
    ]
    if lines:
        say("what the learned controller kept, by family:", *lines)
    idle = second_nevers(rows)
    if idle:
        console().print(
            f"kept nothing on any host, so no rival but a second {NEVER!r}: {', '.join(idle)}",
            style="bold yellow",
            soft_wrap=True,
        )
    if way is not None:
        say(f"from the best fixed schedule (0 %) to the oracle (100 %): {100 * way:.0f} %")
    minutes, seconds = divmod(round(wall_seconds), 60)
    say(f"{minutes} min {seconds} s; everything is in {folder.path}")


def second_nevers(rows: Sequence[EvaluationRow]) -> list[str]:
    """Controls that kept nothing on any host, as never growing does."""
    return [row.name for row in rows if row.name not in (LEARNED, SAMPLED, NEVER) and row.num_fossilized == 0]
