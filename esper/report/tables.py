"""Tables of a sweep, as CSV files and in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from esper.report.figures import ENV_EPOCHS
from esper.report.grouping import Configuration, Sweep
from esper.report.numbers import QUANTITIES, Estimate, Quantity, curve, over_seeds
from esper.runtime.files import write_csv
from esper.runtime.run_folder import RunState
from esper.telemetry.metric_names import RETURN, VAL
from esper.views.folding import FoldingTable

CURVES = (RETURN, VAL)


def states(configuration: Configuration) -> str:
    """Count runs by state, as ``3 finished, 1 failed``."""
    counts = Counter(run.state for run in configuration.runs)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def cell(found: Estimate | None, item: Quantity, statistic: str) -> str:
    """Format ``estimate ± half`` for a mean, ``estimate [low, high]`` for an interquartile mean, or a dash."""
    return "–" if found is None else f"{item.show(found.value)} {item.show_interval(found, statistic)}".rstrip()


def write_configurations(sweep: Sweep, statistic: str, path: Path) -> None:
    """Write a line per configuration, numbers unrounded; an interval takes two more columns, empty for a single
    seed.
    """
    header = [axis.key for axis in sweep.axes] + ["num_runs", "num_finished", "states"]
    for item in QUANTITIES:
        header += [item.name, f"{item.name}_low", f"{item.name}_high", f"{item.name}_seeds"]
    write_csv(path, header, (_configuration_row(configuration, statistic) for configuration in sweep.configurations))


def _configuration_row(configuration: Configuration, statistic: str) -> list[object]:
    finished = sum(run.state == RunState.FINISHED for run in configuration.runs)
    row: list[object] = [*configuration.values, len(configuration.runs), finished, states(configuration)]
    for item in QUANTITIES:
        found = over_seeds(configuration, item, statistic)
        row += [None, None, None, 0] if found is None else found
    return row


def write_runs(sweep: Sweep, path: Path) -> None:
    """Write a line per run, including repeats that are ignored."""
    header = ["folder", *(axis.key for axis in sweep.axes), "seed", "counted", "state", "iterations"]
    header += [item.name for item in QUANTITIES] + ["error", "notes"]
    rows: list[list[object]] = []
    for configuration in sweep.configurations:
        for counted, runs in ((True, configuration.runs), (False, configuration.repeats)):
            for run in runs:
                row: list[object] = [run.path, *configuration.values, run.seed, counted, run.state, len(run.metrics)]
                rows.append([*row, *(item.of(run) for item in QUANTITIES), run.error, "; ".join(run.notes)])
    write_csv(path, header, rows)


def write_curves(sweep: Sweep, statistic: str, path: Path) -> None:
    """Write return and val accuracy of every configuration against iterations and env-epochs."""
    header = [axis.key for axis in sweep.axes] + ["metric", "iteration", "env_epochs", "value", "low", "high", "seeds"]
    rows: list[list[object]] = []
    for configuration in sweep.configurations:
        epochs = curve(configuration.runs, ENV_EPOCHS, "iteration", "mean")
        at = dict(zip(epochs.x.tolist(), epochs.value.tolist(), strict=True))
        for key in CURVES:
            found = curve(configuration.runs, key, "iteration", statistic)
            columns = (found.x, found.value, found.low, found.high, found.count)
            for x, *numbers in zip(*(column.tolist() for column in columns), strict=True):
                cells = [None if math.isnan(value) else value for value in (at[x], *numbers)]
                rows.append([*configuration.values, key, int(x), *cells[:-1], int(numbers[-1])])
    write_csv(path, header, rows)


def terminal_table(sweep: Sweep, statistic: str, score: Quantity) -> FoldingTable:
    """Make a table of configurations with their score, sizes and states, within 80 columns if labels are short."""
    table = FoldingTable()
    table.add("configuration", overflow="fold")
    added, wall = (
        next(item for item in QUANTITIES if item.name == name) for name in ("added_parameters", "wall_seconds")
    )
    for header in (f"{score.title}\n{statistic}, 95 %", "added\nparams", "wall\ns", "seeds"):
        table.add(header, justify="right")
    table.add("runs", overflow="fold")
    for configuration in sweep.configurations:
        found = over_seeds(configuration, score, statistic)
        sizes = [over_seeds(configuration, item, "mean") for item in (added, wall)]
        table.add_row(
            configuration.label,
            cell(found, score, statistic),
            *(item.show(size.value if size else None) for item, size in zip((added, wall), sizes, strict=True)),
            str(found.num_seeds if found else 0),
            states(configuration),
        )
    return table
