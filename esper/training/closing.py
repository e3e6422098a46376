"""Report at the end of a training run: an evaluation with one run seed, and plots of learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import RenderableType

from esper.config.root import SaveGrown
from esper.evaluation.closing import closing_report, draw_timelines
from esper.evaluation.play import Outcome
from esper.evaluation.results import ControllerResult, logged_record, result_rows
from esper.experiment.build import Experiment
from esper.experiment.rank_info import RankInfo
from esper.runtime.controller_names import LEARNED, NEVER
from esper.runtime.records import read_jsonl
from esper.runtime.run_folder import RunFolder
from esper.telemetry.anomalies import advice
from esper.telemetry.lifecycle import anomaly_counts
from esper.telemetry.results import OF_TRAINING, middle
from esper.views.result_tables import compute_line, training_table, verdict
from esper.views.text import with_spread


def training_report(
    experiment: Experiment,
    folder: RunFolder,
    outcomes: Sequence[Outcome],
    rank_infos: Sequence[RankInfo],
    saved: Sequence[Path] = (),
    *,
    elapsed: Callable[[], float],
) -> None:
    """Draw, write and print the results of a run.

    ``saved`` are the files of grown networks that it keeps; ``elapsed`` returns the seconds of the run so far.
    """
    config = experiment.config
    metrics = read_jsonl(folder.metrics)
    results = [ControllerResult(name=outcome.name, outcomes=(outcome,)) for outcome in outcomes]
    rows = result_rows(results)
    if config.telemetry.plots:
        from esper.views.plots import learning_curve, op_mix  # not above: a run does not wait for matplotlib

        never = [middle(row.val_accuracy) for row in rows if row.name == NEVER]
        learning_curve(metrics, folder.plots / "learning_curve.png", never[0] if never else None)
        op_mix(metrics, folder.plots / "op_mix.png")
        draw_timelines(folder, results)
    differences = {f"{LEARNED} - {row.name}": row.return_difference for row in rows if row.return_difference}
    rates = [record["charts/SPS"] for record in metrics]
    title = f"{rows[0].num_hosts} {config.evaluation.split.hosts}, mean ± standard error over hosts"
    told: list[RenderableType] = [training_table(rows, title), compute_line(rows)]
    for pair, difference in differences.items():
        told.append(f"return of {pair}, host by host: {with_spread(difference, '+.2f')}")
    if words := verdict(rows):
        told.append(words)
    told += advice(anomaly_counts(folder.events), config.trainer.num_iterations)
    if config.evaluation.save_grown is not SaveGrown.none:
        kept = f"{len(saved)} in {folder.grown}, for python -m esper.export" if saved else "none, no host kept a module"
        told.append(f"grown networks: {kept}")
    closing_report(
        experiment,
        folder,
        [row.to_record(OF_TRAINING) for row in rows],
        {
            "return_differences": {pair: difference._asdict() for pair, difference in differences.items()},
            "episodes": {outcome.name: list(map(logged_record, outcome.episodes)) for outcome in outcomes},
            "seed": config.seed,
            "mapping": config.env.mapping.name,
            "env_epochs_per_second": sum(rates) / len(rates),
            "ranks": [info.to_record() for info in rank_infos],
        },
        told,
        mode=config.telemetry.console,
        elapsed=elapsed,
    )
