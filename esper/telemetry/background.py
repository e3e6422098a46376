"""A logger that may take its time: a slow terminal or network does not hold up the loop."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from esper.runtime.records import Metrics
from esper.telemetry.events import Event
from esper.telemetry.hub import Logger

MAX_PENDING = 100_000
"""Calls that may wait: some iterations' events."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for what is still to be passed on."""


class InBackground:
    """Passes everything on to another logger from a thread of its own, in order.

    What goes wrong there is raised by the next call here, for the hub to report; so is falling behind by more than
    ``max_pending`` calls, and not being done ``close_seconds`` after the end.

    Args:
        logger: where to pass on to.
        max_pending: calls that may wait.
        close_seconds: how long :meth:`close` waits for them.
    """

    def __init__(self, logger: Logger, *, max_pending: int = MAX_PENDING, close_seconds: float = CLOSE_SECONDS) -> None:
        self._logger = logger
        self._close_seconds = close_seconds
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(max_pending)
        self._error: BaseException | None = None
        # A daemon, so that one that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"logger {logger.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """That of the other logger."""
        return self._logger.name

    def event(self, event: Event) -> None:
        """Hand on one event."""
        self._hand_on(lambda: self._logger.event(event))

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Hand on the metrics of one iteration."""
        kept = dict(metrics)
        self._hand_on(lambda: self._logger.metrics(iteration, kept))

    def flush(self) -> None:
        """Hand on the request; nobody waits for what is not the run's own record."""
        self._hand_on(self._logger.flush)

    def stage(self, message: str, done: int, total: int) -> None:
        """Hand on how far a preparation is."""
        self._hand_on(lambda: self._logger.stage(message, done, total))

    def close(self, status: str) -> None:
        """Wait until everything has been passed on, and close the other logger."""
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
        if self._error is not None:  # it ended its thread, which must not end this one
            raise RuntimeError(f"it ended with {type(self._error).__name__}") from self._error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            # Kept for the loop's thread, whose business it is to report it; the rest has nowhere to go.
            except BaseException as error:
                self._error = error
                with contextlib.suppress(Exception):
                    self._logger.close("failed")
                return
