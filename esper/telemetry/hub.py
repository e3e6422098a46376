"""The telemetry hub: receives events and metrics, and passes them to any number of loggers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from esper.runtime.records import Metrics
from esper.runtime.run_folder import final_state
from esper.runtime.terminal import say
from esper.telemetry.events import Event, Level


class Logger:
    """Destination of telemetry: a file, a terminal, a service.

    A logger must not slow the loop: it buffers in :meth:`event` and writes at most once per iteration, in
    :meth:`metrics`. A class that derives from this one overrides only the methods that it needs; the others do nothing.

    Attributes:
        name: name of this logger in warnings.
    """

    name: str

    def event(self, event: Event) -> None:
        """Receive one event, at or below the hub's level."""

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Receive the metrics of one iteration, and write buffered events."""

    def flush(self) -> None:
        """Write buffered data to disk, because a checkpoint is about to record the length of the files."""

    def stage(self, message: str, done: int, total: int) -> None:
        """Receive the progress of a long preparation: ``done`` of ``total`` parts of ``message``."""

    def close(self, status: str) -> None:
        """Write remaining data and release files and threads. ``status`` is the final state of the run."""


def _warn(message: str) -> None:
    say(f"warning: {message}", stderr=True)


def optional(name: str, make: Callable[[], Logger], warn: Callable[[str], None] = _warn) -> list[Logger]:
    """Make a logger that a run does not depend on; return none, with a warning, if it cannot be made."""
    try:
        return [make()]
    # As in the hub: whatever goes wrong costs only that logger.
    except Exception as error:
        warn(f"logger {name} cannot be made and is left out ({type(error).__name__}: {error})")
        return []


class TelemetryHub:
    """Distributor of events and metrics to loggers. A logger that fails is reported once and dropped; the others
    continue.

    An error in a logger of the run's own record is raised, after the others have been called.

    As a context manager it closes its loggers however the block ends.

    Args:
        loggers: loggers, in the order in which they are called.
        level: level of events to record; metrics are always passed on.
        record: loggers that the run depends on; called before the others.
        warn: function that reports a dropped logger.
    """

    def __init__(
        self,
        loggers: Sequence[Logger],
        level: Level = Level.normal,
        *,
        record: Sequence[Logger] = (),
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self.level = level
        self._record = tuple(record)
        self._loggers = [*record, *loggers]
        self._warn = warn

    def wants(self, event_type: type[Event]) -> bool:
        """Return whether events of this type are recorded. Ask before building events in a hot loop."""
        return self.level.keeps(event_type)

    def emit(self, event: Event) -> None:
        """Pass one event on if the level records it."""
        if self.wants(type(event)):
            self._each(lambda logger: logger.event(event))

    def log_metrics(self, iteration: int, metrics: Metrics) -> None:
        """Pass on the metrics of one iteration, counted from 1.

        Raises:
            TypeError: a value is neither a number nor ``None``; a tensor here would hide a device synchronisation.
        """
        for key, value in metrics.items():
            if value is not None and not isinstance(value, int | float):
                raise TypeError(f"metric {key!r} must be a number or None, not {type(value).__name__}")
        self._each(lambda logger: logger.metrics(iteration, metrics))

    def flush(self) -> None:
        """Flush every logger, before a checkpoint."""
        self._each(lambda logger: logger.flush())

    def stage(self, message: str, done: int, total: int) -> None:
        """Report the progress of a long preparation: ``hub.stage("never-grown twins", 12, 64)``."""
        self._each(lambda logger: logger.stage(message, done, total))

    def close(self, status: str) -> None:
        """Close all loggers. Further calls do nothing."""
        self._each(lambda logger: logger.close(status))
        self._loggers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(final_state(error))
        except Exception:
            if error is None:  # otherwise the other error is the cause to report
                raise

    def _each(self, call: Callable[[Logger], None]) -> None:
        fatal: Exception | None = None
        for logger in tuple(self._loggers):
            try:
                call(logger)
            # Whatever goes wrong in a logger (a closed pipe, a lost network, a bug) costs only that logger.
            except Exception as error:
                self._loggers.remove(logger)
                if logger in self._record:
                    fatal = fatal or error
                else:
                    self._warn(f"logger {logger.name} failed and is dropped ({type(error).__name__}: {error})")
                with contextlib.suppress(Exception):
                    logger.close("failed")
        if fatal is not None:
            raise fatal
