"""PNG plots of a run: learning curve and op mix.

Each function takes plain records and writes one file. Figures are made without pyplot, so nothing global changes and no
display is needed. If there is nothing to draw, the picture says so: a run of no iterations still has its files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from esper.runtime.files import replacing
from esper.telemetry.metric_names import CHOICE_SHARE, GAIN_SEM, NEVER, RETURN, RETURN_SEM, VAL, VAL_SEM
from esper.views.drawing import Axes, Figure, MaxNLocator, PercentFormatter
from esper.views.palette import CONTROLLER_COLOUR, INK, NEVER_COLOUR, OP_COLOURS

DPI = 150
MANY_POINTS = 60
"""Number of iterations above which points are drawn without markers."""

Record = Mapping[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def learning_curve(metrics: Sequence[Record], path: Path, never_accuracy: float | None = None) -> None:
    """Plot mean episodic return, final val accuracy with that of never growing, and the difference of the two, against
    iteration.

    Args:
        metrics: records of ``metrics.jsonl``.
        path: PNG to write.
        never_accuracy: val accuracy of never-grown hosts, as a fraction of 1, if it is known for all hosts. The
            never-grown twins of each iteration's own hosts are drawn too if they are in the metrics.
    """
    figure = Figure(figsize=(8.0, 8.4), layout="constrained")
    returns, accuracy, gains = figure.subplots(3, 1, sharex=True)
    figure.suptitle("Learning curve: what the controller earns and where its hosts end", fontsize=12, color=INK)
    _mean_and_error(returns, metrics, _column(metrics, RETURN), _column(metrics, RETURN_SEM))
    returns.axhline(0.0, color=NEVER_COLOUR, linestyle="--", linewidth=1.4, label="never grow (earns 0)")
    returns.set_ylabel("mean episodic return (points)")
    _mean_and_error(accuracy, metrics, _column(metrics, VAL), _column(metrics, VAL_SEM))
    never = _column(metrics, NEVER)
    if np.isfinite(never).any():
        label = "never-grown twins"
        accuracy.plot(
            _iterations(metrics), never, f"{_marker(metrics)}-", color=NEVER_COLOUR, ms=2.0, lw=1.0, label=label
        )
    if never_accuracy is not None:
        label = f"never grow, all hosts ({never_accuracy:.1%})"
        accuracy.axhline(never_accuracy, color=NEVER_COLOUR, linestyle="--", linewidth=1.4, label=label)
    accuracy.set_ylabel("final val accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    # The mean follows from those above, in runs that began before it was a metric, too.
    _mean_and_error(gains, metrics, 100 * (_column(metrics, VAL) - never), 100 * _column(metrics, GAIN_SEM))
    gains.axhline(0.0, color=NEVER_COLOUR, linestyle="--", linewidth=1.4, label="never-grown twins of the same hosts")
    gains.set_ylabel("gain in val accuracy (points)")
    gains.set_xlabel("iteration")
    for axes in (returns, accuracy, gains):
        style(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.margins(y=0.12)
        legend_above(axes, 4, 8.5)
    if metrics:
        accuracy.set_xlim(metrics[0]["iteration"] - 0.5, metrics[-1]["iteration"] + 0.5)
    else:
        say_empty(returns, "no iterations recorded")
        say_empty(accuracy, "no iterations recorded")
        say_empty(gains, "no iterations recorded")
    save(figure, path)


def op_mix(metrics: Sequence[Record], path: Path) -> None:
    """Plot the shares of attempted ops among steps with a choice, stacked, against iteration.

    Args:
        metrics: records of ``metrics.jsonl``; iterations without any choice are left blank.
        path: PNG to write.
    """
    figure = Figure(figsize=(8.0, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title("Op mix: what the controller does where it has a choice", fontsize=12, color=INK)
    shares = np.array([_column(metrics, CHOICE_SHARE + op) for op in OP_COLOURS])  # [ops, iterations]
    chosen = np.isfinite(shares).any(axis=0)
    iterations = _iterations(metrics)
    # One step per iteration, so that a single iteration and gaps (NaN) are drawn as what they are.
    edges = np.append(iterations - 0.5, iterations[-1:] + 0.5)
    bottom = np.where(chosen, 0.0, math.nan)
    for op, share in zip(OP_COLOURS, shares, strict=True):
        top = bottom + np.nan_to_num(share)
        if chosen.any():
            axes.stairs(top, edges, baseline=bottom, fill=True, color=OP_COLOURS[op], label=op)
        bottom = top
    style(axes, grid=False)
    axes.set_ylim(0.0, 1.0)
    axes.margins(x=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("iteration")
    axes.set_ylabel("share of steps with a choice")
    if chosen.any():
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    else:
        say_empty(axes, "no iteration with a choice")
    save(figure, path)


def _iterations(metrics: Sequence[Record]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([record["iteration"] for record in metrics], dtype=np.float64)


def _column(metrics: Sequence[Record], key: str) -> Floats:
    """Return one metric over iterations; NaN where it was not measured, which draws nothing."""
    values = (record.get(key) for record in metrics)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _marker(metrics: Sequence[Record]) -> str:
    return "o" if len(metrics) <= MANY_POINTS else ""


def _mean_and_error(axes: Axes, metrics: Sequence[Record], centre: Floats, sem: Floats) -> None:
    iterations, error = _iterations(metrics), np.nan_to_num(sem)
    axes.plot(iterations, centre, f"{_marker(metrics)}-", color=CONTROLLER_COLOUR, ms=3.0, lw=1.8, label="controller")
    if len(iterations) == 1:
        axes.errorbar(iterations, centre, error, color=CONTROLLER_COLOUR, capsize=3.0, linestyle="none")
    else:
        axes.fill_between(
            iterations,
            centre - error,
            centre + error,
            color=CONTROLLER_COLOUR,
            alpha=0.18,
            linewidth=0.0,
            label="± standard error",
        )


def style(axes: Axes, *, grid: bool = True) -> None:
    """Apply the common style: light grid, no box, dark grey text."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#AAAAAA")
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(color="#E4E4E4", linewidth=0.8)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png", facecolor="white")


def legend_above(axes: Axes, columns: int, size: float = 9) -> None:
    """Put a legend in a row above the axes, where it covers no data."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=size,
        borderaxespad=0.2,
    )


def say_empty(axes: Axes, text: str) -> None:
    """Say in the picture that there is nothing to draw."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
