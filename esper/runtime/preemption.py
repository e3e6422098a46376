"""Requests to stop: a signal takes effect at the next safe point, and all ranks stop at the same one.

Nothing slow is imported here, so that a process can listen from its start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from esper.runtime.ranks import Ranks

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that request a stop: from a scheduler, Ctrl-C, and a closed terminal."""


class Preempted(SystemExit):
    """A run stops because it was asked to, and can be resumed.

    Ends the process with code 128 + the signal's number: 143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP.

    Attributes:
        number: number of the signal.
    """

    code: int

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def heard() -> tuple[signal.Signals, ...]:
    """Return the signals to which this process listens; under ``nohup`` it ignores the closing of its terminal."""
    return tuple(number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def leave_on_request() -> None:
    """End this process silently at once on a request to stop, for the time in which it has nothing to lose."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(128 + number)

    for number in heard():
        signal.signal(number, leave)


class StopSignals:
    """Context in which a request to stop raises :class:`Preempted`, at once or at the end of :meth:`deferred`.

    Outside the main thread it receives nothing: the thread's owner has to end it.

    Attributes:
        requested: number of the signal that :meth:`deferred` holds back, 0 for none.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._deferring = False
        self._pass_on: Callable[[], object] = lambda: None
        self._before: dict[int, Any] = {}

    @contextmanager
    def deferred(self, pass_on: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Hold the first signal back until the end of the block; a second one takes effect at once.

        Args:
            pass_on: called at once for the first signal.
        """
        self._deferring, self._pass_on = True, pass_on
        try:
            yield
        finally:
            self._deferring = False
        if self.requested:
            raise Preempted(self.requested)

    def __enter__(self) -> Self:
        try:
            self._before = {number: signal.signal(number, self._heed) for number in heard()}
        except ValueError:  # not the main thread of its process, as under some launchers
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self.requested:
            raise Preempted(number)
        self.requested = number
        self._pass_on()


class Vote:
    """Vote of all ranks on whether to stop: each asks at the same points and gets the same answers.

    An answer comes one point late, so that no rank waits for the slowest at every step.

    Args:
        ranks: the voters.
        signals: signals received by this rank.
    """

    def __init__(self, ranks: Ranks, signals: StopSignals) -> None:
        self._ranks, self._signals = ranks, signals
        self._outstanding: Callable[[], int] | None = None

    def ask(self) -> int:
        """Return the number of the signal to stop for, 0 to continue. With a single rank, the answer is the present
        one.
        """
        if self._ranks.size == 1:
            return self._signals.requested
        before, self._outstanding = self._outstanding, self._ranks.start_max(self._signals.requested)
        return 0 if before is None else before()

    def settle(self) -> int:
        """Return the present answer and leave nothing outstanding, for points at which the ranks wait for one another
        anyway.
        """
        late = self.ask()
        now = 0 if self._outstanding is None else self._outstanding()
        self._outstanding = None
        return max(late, now)
