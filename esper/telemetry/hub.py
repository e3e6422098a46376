"""The hub: one place to emit to, any number of loggers behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from esper.runtime.records import Metrics
from esper.runtime.run_folder import final_state
from esper.runtime.terminal import say
from esper.telemetry.events import Event, Level


class Logger(Protocol):
    """Where telemetry goes: a file, a terminal, a service.

    A logger must not slow the loop: it buffers in :meth:`event` and writes at most once per iteration, in
    :meth:`metrics`.
    """

    @property
    def name(self) -> str:
        """What a warning about this logger calls it."""

    def event(self, event: Event) -> None:
        """Take one event. Only events at or below the hub's level arrive."""

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Take the metrics of one iteration, and write what was buffered."""

    def flush(self) -> None:
        """Write what was buffered, for good: a checkpoint is about to say how far the files are."""

    def stage(self, message: str, done: int, total: int) -> None:
        """Take note of a long preparation: ``done`` of ``total`` parts of ``message``."""

    def close(self, status: str) -> None:
        """Write what is left and let go of files and threads. ``status`` is the state in which the run ends."""


def _warn(message: str) -> None:
    say(f"warning: {message}", stderr=True)


def optional(name: str, make: Callable[[], Logger], warn: Callable[[str], None] = _warn) -> list[Logger]:
    """A logger that a run can do without, or none and a warning if it cannot be made."""
    try:
        return [make()]
    # As in the hub: whatever goes wrong costs only that logger.
    except Exception as error:
        warn(f"logger {name} cannot be made and is left out ({type(error).__name__}: {error})")
        return []


class TelemetryHub:
    """Passes events and metrics to loggers. One that fails is reported once and dropped; the others go on.

    What goes wrong in a logger of the run's own record is raised, once the others have been told.

    As a context manager it closes its loggers however the block ends.

    Args:
        loggers: where to pass them on to, in this order.
        level: what is kept of events, by name or value; metrics are always passed on.
        record: loggers without which a run must not go on; told before the others.
        warn: how to report a dropped logger.

    Raises:
        ValueError: unknown level.
    """

    def __init__(
        self,
        loggers: Sequence[Logger],
        level: Level | str = Level.normal,
        *,
        record: Sequence[Logger] = (),
        warn: Callable[[str], None] = _warn,
    ) -> None:
        if isinstance(level, str) and level not in Level.__members__:
            raise ValueError(f"unknown telemetry level {level!r}: choose one of {', '.join(Level.__members__)}")
        self.level = Level[level] if isinstance(level, str) else level
        self._record = tuple(record)
        self._loggers = [*record, *loggers]
        self._warn = warn

    def wants(self, event_type: type[Event]) -> bool:
        """Whether events of this type are kept. Ask before building events in a hot loop."""
        return event_type.level <= self.level

    def emit(self, event: Event) -> None:
        """Pass on one event if the level keeps it."""
        if self.wants(type(event)):
            self._each(lambda logger: logger.event(event))

    def log_metrics(self, iteration: int, metrics: Metrics) -> None:
        """Pass on the metrics of one iteration, counted from 1.

        Raises:
            TypeError: a value is neither a number nor ``None``; a tensor here would hide a device sync.
        """
        for key, value in metrics.items():
            if value is not None and not isinstance(value, int | float):
                raise TypeError(f"metric {key!r} must be a number or None, not {type(value).__name__}")
        self._each(lambda logger: logger.metrics(iteration, metrics))

    def flush(self) -> None:
        """Have every logger write what it buffers, before a checkpoint."""
        self._each(lambda logger: logger.flush())

    def stage(self, message: str, done: int, total: int) -> None:
        """Tell how far a long preparation is: ``hub.stage("never-grown twins", 12, 64)``."""
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
            if error is None:  # otherwise that one is the cause, and the one to report
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
