"""Being asked to end: a signal is heeded at the next safe point, and all ranks end at the same one.

Nothing is imported here that takes long, so that a process can begin by listening.
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
"""Requests to end: a scheduler's, Ctrl-C, and a terminal that is closed."""


class Preempted(SystemExit):
    """A run ends because it was asked to, and can be continued.

    Ends the process with code 128 + the signal's number: 143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP.

    Attributes:
        number: of the signal.
    """

    code: int

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def heard() -> tuple[signal.Signals, ...]:
    """Those of the requests to which this process listens: after ``nohup`` it outlives its terminal."""
    return tuple(number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def leave_on_request() -> None:
    """End this process at once, without a word, when it is asked to: as long as it has nothing to lose."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(128 + number)

    for number in heard():
        signal.signal(number, leave)


class StopSignals:
    """While entered, a request to end raises :class:`Preempted`, at once or, inside :meth:`deferred`, when it suits.

    In another thread than the main one it hears nothing: whoever started the thread ends it.

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
        """The first signal inside is only noted; a second one is not held back. What was noted is raised at the end.

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
    """Whether to end, decided by all ranks together: each asks at the same points and gets the same answers.

    An answer comes one point late, so that no rank waits for the slowest at every step.

    Args:
        ranks: who votes.
        signals: what this rank has heard.
    """

    def __init__(self, ranks: Ranks, signals: StopSignals) -> None:
        self._ranks, self._signals = ranks, signals
        self._outstanding: Callable[[], int] | None = None

    def ask(self) -> int:
        """Number of the signal to end for, 0 to go on. Alone, the answer is the present one."""
        if self._ranks.size == 1:
            return self._signals.requested
        before, self._outstanding = self._outstanding, self._ranks.start_max(self._signals.requested)
        return 0 if before is None else before()

    def settle(self) -> int:
        """The present answer, with nothing outstanding: for points where the ranks wait for one another anyway."""
        late = self.ask()
        now = 0 if self._outstanding is None else self._outstanding()
        self._outstanding = None
        return max(late, now)
