"""The registry of loggers that ``telemetry.loggers`` adds to a run's own record, and the built-in ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esper.runtime.choices import known
from esper.runtime.files import write_csv
from esper.runtime.records import Metrics, json_safe, read_jsonl
from esper.runtime.registry import Registry
from esper.runtime.run_folder import RunFolder
from esper.telemetry.hub import Logger

ITERATION = "iteration"

WANDB = "wandb"
"""Name of the mirror to Weights & Biases, which outlives the loggers of the registry: it also sends a run's results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Ingredients for building a logger.

    Attributes:
        folder: run folder.
        config: effective configuration as plain values.
        iteration: finished iterations of a resumed run, 0 for a new one.
    """

    folder: Path
    config: Mapping[str, Any]
    iteration: int = 0


class MetricsCsv(Logger):
    """``metrics.csv``: the lines of ``metrics.jsonl`` as a table, with an empty cell for ``null``.

    A resumed run begins with the table of its record. A metric that appears later adds a column.
    """

    name = "csv"

    def __init__(self, run: LoggedRun) -> None:
        self._path = run.folder / "metrics.csv"
        record = RunFolder(run.folder).metrics
        self._write(read_jsonl(record) if record.exists() else [])

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Append one row."""
        row = {ITERATION: iteration, **json_safe(metrics)}
        if set(row) <= set(self._columns):
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        else:
            with self._path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            self._write([*rows, row])

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._columns = [ITERATION, *sorted({name for row in rows for name in row} - {ITERATION})]
        write_csv(self._path, self._columns, ([row.get(name) for name in self._columns] for row in rows))


class TensorBoard(Logger):
    """``tensorboard/``: event files for ``tensorboard --logdir``, without values that are ``None`` or not finite.

    The files of a resumed run hide what a killed process has written after the last checkpoint.
    """

    name = "tensorboard"

    def __init__(self, run: LoggedRun) -> None:
        # Imported here, because it takes seconds and its package may be missing.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.iteration + 1)

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


LOGGERS: Registry[Callable[[LoggedRun], Logger]] = Registry("logger", {"csv": MetricsCsv, "tensorboard": TensorBoard})

EXTRAS = ("tensorboard", WANDB)
"""Loggers that need a package of the same name, which the extra of the same name installs."""


def register_logger(name: str, make: Callable[[LoggedRun], Logger]) -> None:
    """Register a logger for ``telemetry.loggers``.

    Args:
        name: name in the configuration.
        make: function of a :class:`LoggedRun`, or a class with such a constructor; called on the first rank only.

    Raises:
        ValueError: a name that is not an identifier or belongs to another logger, or ``make`` is not a function.
    """
    if name == WANDB:
        raise ValueError(f"there is a logger {WANDB!r} already, the mirror of wandb.mode: choose another name")
    LOGGERS.register(name, make)


def check_logger(name: str) -> None:
    """Refuse a name of ``telemetry.loggers`` that is unknown, or whose package is missing.

    Raises:
        ValueError: lists the choices, or says what to install.
    """
    try:
        known("telemetry.loggers", name, (*LOGGERS, WANDB))
    except ValueError as error:
        raise ValueError(f"{error}; metrics.jsonl is always written") from None
    if name in EXTRAS:
        require(name, f"telemetry.loggers: {name}")


def require(package: str, key: str) -> None:
    """Refuse what needs a package that is not installed; ``key`` opens the message.

    Raises:
        ValueError: says what to install.
    """
    if find_spec(package) is None:
        raise ValueError(f"{key} needs the package {package}: pip install '.[{package}]'")
