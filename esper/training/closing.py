"""The end of a run: closing table, plots and ``result.json``."""

from __future__ import annotations

from collections.abc import Sequence

from esper.config.root import Console as ConsoleMode
from esper.evaluation.play import Outcome, paired_difference
from esper.experiment.build import Laboratory
from esper.experiment.members import Member
from esper.runtime.provenance import environment_info
from esper.runtime.records import read_jsonl
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import console, say
from esper.telemetry.summary import Mean
from esper.views.plots import learning_curve, op_mix
from esper.views.text import closing_table
from esper.views.timeline_plot import slot_timeline

LEARNED = "learned"


def closing_report(
    laboratory: Laboratory,
    folder: RunFolder,
    outcomes: Sequence[Outcome],
    members: Sequence[Member],
    *,
    wall_seconds: float,
) -> None:
    """Draw, write and print what came out of a run."""
    config = laboratory.config
    metrics = read_jsonl(folder.metrics)
    if config.telemetry.plots:
        _draw(laboratory, folder, outcomes, metrics)
    differences = _differences(outcomes)
    rates = [record["charts/SPS"] for record in metrics]
    folder.write_result(
        {
            "controllers": [outcome.summary().to_record() for outcome in outcomes],
            "return_differences": {
                f"{LEARNED} - {name}": difference and difference._asdict() for name, difference in differences.items()
            },
            "episodes": {outcome.name: _episodes(outcome) for outcome in outcomes},
            "seed": config.seed,
            "mapping": config.env.mapping.name,
            "wall_seconds": wall_seconds,
            "env_epochs_per_second": sum(rates) / len(rates),
            "ranks": [member.to_record() for member in members],
            **environment_info(str(laboratory.device)),
        }
    )
    if config.telemetry.console is not ConsoleMode.off:
        _print(folder, outcomes, differences, wall_seconds)


def _draw(
    laboratory: Laboratory, folder: RunFolder, outcomes: Sequence[Outcome], metrics: list[dict[str, object]]
) -> None:
    finals = [outcome.summary().val_accuracy for outcome in outcomes if outcome.name == "never"]
    never = finals[0].mean if finals and finals[0] else None
    learning_curve(metrics, folder.plots / "learning_curve.png", never)
    op_mix(metrics, folder.plots / "op_mix.png")
    for outcome in outcomes:
        if outcome.name != "never":
            path = folder.plots / f"slot_timeline_{outcome.name}.png"
            slot_timeline(outcome.timeline, path, laboratory.slot_ids)


def _differences(outcomes: Sequence[Outcome]) -> dict[str, Mean | None]:
    """Return of the learned controller minus that of each other one, paired by host."""
    learned = [outcome for outcome in outcomes if outcome.name == LEARNED]
    if not learned:
        return {}
    return {outcome.name: paired_difference(learned[0], outcome) for outcome in outcomes if outcome.name != LEARNED}


def _episodes(outcome: Outcome) -> list[dict[str, object]]:
    return [
        {
            "instance": episode.instance.index,
            "family": episode.instance.family,
            "return": episode.episode_return,
            "val_accuracy": episode.val_accuracy,
            "test_accuracy": episode.test_accuracy,
            "val_bits": episode.val_bits,
            "test_bits": episode.test_bits,
            "added_parameters": episode.added_parameters,
            "num_fossilized": episode.num_fossilized,
            "kept": dict(episode.kept),
            "num_germinated": episode.num_germinated,
            "relative_flops": episode.relative_flops,
            "crashed": episode.crashed,
            "shapley": dict(episode.shapley),
        }
        for episode in outcome.episodes
    ]


def _print(
    folder: RunFolder, outcomes: Sequence[Outcome], differences: dict[str, Mean | None], wall_seconds: float
) -> None:
    num_hosts = len(outcomes[0].episodes)
    title = f"{num_hosts} held-out hosts, mean ± standard error over hosts"
    console().print(closing_table([outcome.summary() for outcome in outcomes], title))
    for name, difference in differences.items():
        if difference is not None:
            error = "" if difference.sem is None else f" ± {difference.sem:.2f}"
            say(f"return of learned - {name}, host by host: {difference.mean:+.2f}{error}")
    minutes, seconds = divmod(round(wall_seconds), 60)
    say(f"{minutes} min {seconds} s; everything is in {folder.path}")
