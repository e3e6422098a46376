"""Output to the terminal: not part of a run's work, so no failure of a terminal, a pipe or a log ends it.

:func:`secure` makes standard output and standard error such streams; :func:`console` draws on them. Nothing slow is
imported here, so that a process can begin with it.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from typing_extensions import Buffer

STANDARD = (0, 1, 2)
"""Descriptors of standard input, output and error."""

PLAIN = {
    "±": "+-",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "·": ".",
    "×": "x",
    "─": "-",
    "━": "-",
    "╸": "-",
    "╺": "-",
    "│": "|",
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
}
"""Replacements for characters that a terminal's encoding lacks; all others become a question mark."""

ERRORS = "esper.plain"


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error(ERRORS, _plainly)


class _Unfailing(io.FileIO):
    """A descriptor that accepts all output: after a failure it discards everything, including that of child processes.

    Attributes:
        failed: true after a failure.
    """

    failed = False

    def write(self, data: Buffer) -> int:
        """Write or discard data. Waits for a full pipe in non-blocking mode."""
        view = memoryview(data)
        try:
            while (count := super().write(view)) is None:
                select.select([], [self], [])
        # The reader is gone, the disk full or the terminal closed, so the error cannot be reported.
        except OSError:
            self.failed = True
            _throw_away(self.fileno())
            return view.nbytes
        return count


def _throw_away(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def secure() -> None:
    """Make standard output and error of this process accept everything, whatever happens to their destination.

    Characters that their encoding lacks are replaced. A closed stream is opened on the null device, so that no file of
    the run gets its descriptor. Streams that were replaced by others are left alone.
    """
    for descriptor in STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            _throw_away(descriptor)
    sys.stdout = _secured(sys.stdout, sys.__stdout__, 1)
    sys.stderr = _secured(sys.stderr, sys.__stderr__, 2)


def _secured(stream: TextIO | None, original: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None and stream is not original:
        return stream
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.flush()
    raw = _Unfailing(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=None if stream is None else stream.encoding,
        errors=ERRORS,
        line_buffering=raw.isatty() or descriptor == 2,
        write_through=getattr(stream, "write_through", False),
    )


def reaches_somebody() -> bool:
    """Return whether standard output has reached its destination so far."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return not (isinstance(raw, _Unfailing) and raw.failed)


class ConsoleMode(StrEnum):
    """Form of the terminal output; auto = live in a terminal, plain otherwise."""

    auto = "auto"
    live = "live"
    plain = "plain"
    off = "off"


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console to draw on. Text is shown literally: brackets in a path are no markup, and colons around a word
    no emoji.
    """
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines as they are, without wrapping."""
    console(stderr=stderr).print("\n".join(lines), soft_wrap=True)
