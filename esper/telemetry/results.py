"""Results of a controller as a row of tables, of ``result.json`` and of CSV files, and readers of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from esper.growth.actions import OP_NAMES, OP_WAIT
from esper.telemetry.lifecycle import PlainTable
from esper.telemetry.metric_names import RETURN
from esper.telemetry.statistics import Interval, Mean

Measure: TypeAlias = Mean | Interval
"""A mean over hosts with its standard error, or over run seeds and hosts with its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """Results of one controller over the held-out hosts. ``None`` where a number was not measured.

    Intervals are those of :func:`esper.telemetry.statistics.crossed_bootstrap` over run seeds and instances, all at one
    level.

    Attributes:
        name: name of the controller.
        num_runs: number of run seeds of the learner; 1 for a controller without run seeds.
        num_hosts: number of instances, the same for all run seeds.
        episode_return: mean undiscounted return, in points.
        return_iqm: interquartile mean of undiscounted returns, in points.
        return_difference: mean return of the learned controller minus this one's, paired by run seed and instance.
        improvement: probability that the learned controller's return is above this one's.
        test_return: mean return if hosts were scored on test images, which paid no reward, in points.
        val_accuracy, test_accuracy: mean accuracy of the final networks, as a fraction of 1.
        test_difference: test accuracy of the learned controller minus this one's, paired, as a fraction of 1.
        added_parameters: parameters of the modules kept, mean over hosts.
        flops_ratio: mean multiply-adds of training a host and its modules, over those of the host alone for as many
            epochs.
        wall_seconds: wall-clock time of all episodes of one run seed.
        num_fossilized: mean number of modules kept, with its standard error at the end of training.
        num_germinated: mean number of modules ever created in a host.
        survival: modules kept, as a share of those germinated; ``None`` if there were none.
        op_share: share of each op among steps with a choice, by name in the order of ops, as a fraction of 1.
        val_bits, test_bits: for text, mean loss of the final networks in bits per byte: lower is better.
        bits_difference: test bits of the learned controller minus this one's, paired.
        bits_over_never: test bits of this controller minus those of never-grow, paired.
    """

    name: str
    num_runs: int
    num_hosts: int
    episode_return: Measure | None = None
    return_iqm: Interval | None = None
    return_difference: Measure | None = None
    improvement: Interval | None = None
    test_return: Measure | None = None
    val_accuracy: Measure | None = None
    test_accuracy: Measure | None = None
    test_difference: Measure | None = None
    added_parameters: Measure | None = None
    flops_ratio: Measure | None = None
    wall_seconds: float | None = None
    num_fossilized: Mean | float | None = None
    num_germinated: float | None = None
    survival: float | None = None
    op_share: Mapping[str, float] | None = None
    val_bits: Measure | None = None
    test_bits: Measure | None = None
    bits_difference: Measure | None = None
    bits_over_never: Measure | None = None

    @property
    def wait_share(self) -> Mean | None:
        """Share of WAIT among steps with a choice, over all of them."""
        return None if self.op_share is None else Mean(self.op_share[OP_NAMES[OP_WAIT]], None)

    def to_record(self, names: Iterable[str]) -> dict[str, object]:
        """Return fields by name for ``result.json``, each measure as a dict of its numbers."""
        values = ((name, getattr(self, name)) for name in names)
        return {name: value._asdict() if isinstance(value, Mean | Interval) else value for name, value in values}


OF_TEXT = ("val_bits", "test_bits", "bits_difference", "bits_over_never")
"""Fields that exist for text only."""

OF_TRAINING = (
    *("name", "num_hosts", "episode_return", "val_accuracy", "test_accuracy", "added_parameters", "wait_share"),
    *("num_fossilized", "flops_ratio", "val_bits", "test_bits"),
)
"""Fields in the ``result.json`` of a training run."""


def evaluation_fields(rows: Iterable[ResultRow]) -> list[str]:
    """List the fields in an evaluation's ``result.json`` and ``controllers.csv``: those of text only if some row has
    them.
    """
    text = any(row.test_bits for row in rows)
    return [field.name for field in fields(ResultRow) if text or field.name not in OF_TEXT]


def middle(value: Measure | float | None) -> float | None:
    """Return the mean or estimate of a measure; a plain number unchanged."""
    return value[0] if isinstance(value, Mean | Interval) else value


def controllers_table(result: Mapping[str, Any]) -> PlainTable:
    """Read the closing table of a ``result.json`` of a training run or an evaluation: a row per controller."""
    rows = [_flat(record) for record in result["controllers"]]
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    return PlainTable(columns, tuple(tuple(row.get(column) for column in columns) for row in rows))


def closing_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Read the closing table as single numbers, for plots across runs.

    Returns:
        ``closing/<controller>/<metric>``, ``…/<metric>_sem`` of means and ``…/<metric>_low`` and ``_high`` of
        intervals, and ``closing/difference/<pair>`` of returns, host by host.
    """
    parts = {record["name"]: _flat(record) for record in result["controllers"]}
    parts["difference"] = _flat(result.get("return_differences", {}))
    return {
        f"closing/{part}/{key}": value
        for part, record in parts.items()
        for key, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give each recorded mean or interval its own name, and the numbers of its uncertainty names after it."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        flat |= {key if name in MIDDLES else f"{key}_{name}": number for name, number in value.items()}
    return flat


MIDDLES = ("mean", "estimate")
"""Names of the middle of a :class:`Mean` and of an :class:`Interval`."""


def best_numbers(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Read the highest mean return of an iteration, the first of equals, and the number of that iteration."""
    measured = [record for record in metrics if record.get(RETURN) is not None]
    if not measured:
        return {}
    best = max(measured, key=lambda record: float(record[RETURN]))
    return {f"best/{RETURN}": best[RETURN], "best/iteration": best["iteration"]}
