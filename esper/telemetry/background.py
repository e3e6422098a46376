"""A logger that runs in the background, so that a slow terminal or network does not delay the loop."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from esper.runtime.records import Metrics
from esper.telemetry.events import Event
from esper.telemetry.hub import Logger

MAX_PENDING = 100_000
"""Largest number of queued calls, enough for the events of some iterations."""
CLOSE_SECONDS = 30.0
"""Seconds that the end of a run waits for queued calls."""


class InBackground(Logger):
    """Logger that passes everything on to another logger in order, from a separate thread.

    Its errors are raised by the next call here, for the hub to report; so are a queue of more than ``max_pending``
    calls, and calls unfinished ``close_seconds`` after the end.

    Args:
        logger: logger to pass calls on to.
        max_pending: largest number of queued calls.
        close_seconds: seconds that :meth:`close` waits for them.
    """

    def __init__(self, logger: Logger, *, max_pending: int = MAX_PENDING, close_seconds: float = CLOSE_SECONDS) -> None:
        self._logger, self.name = logger, logger.name
        self._close_seconds = close_seconds
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(max_pending)
        self._error: BaseException | None = None
        # A daemon, so that one that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"logger {logger.name}", daemon=True)
        self._thread.start()

    def event(self, event: Event) -> None:
        """Queue one event."""
        self._hand_on(lambda: self._logger.event(event))

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Queue the metrics of one iteration."""
        kept = dict(metrics)
        self._hand_on(lambda: self._logger.metrics(iteration, kept))

    def flush(self) -> None:
        """Queue a flush without waiting for it, because this logger is not the run's own record."""
        self._hand_on(self._logger.flush)

    def stage(self, message: str, done: int, total: int) -> None:
        """Queue a report of the progress of a long preparation."""
        self._hand_on(lambda: self._logger.stage(message, done, total))

    def close(self, status: str) -> None:
        """Wait until all queued calls are done, and close the other logger."""
        self._hand_on(lambda: self._logger.close(status))
        self._hand_on(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"not done {self._close_seconds:g} s after the end of the run")
        self._raise()

    def _hand_on(self, call: Callable[[], None] | None) -> None:
        self._raise()
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            raise TimeoutError(f"more than {self._calls.maxsize} records behind") from None

    def _raise(self) -> None:
        if isinstance(self._error, Exception):
            raise self._error
        if self._error is not None:  # it must end its own thread only
            raise RuntimeError(f"it ended with {type(self._error).__name__}") from self._error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            # Kept for the loop's thread to report; the remaining calls are dropped.
            except BaseException as error:
                self._error = error
                with contextlib.suppress(Exception):
                    self._logger.close("failed")
                return
