"""What a process says: never part of its work, so nothing that happens to a terminal, a pipe or a log ends it.

:func:`secure` makes standard output and standard error such streams; :func:`console` draws on them. Nothing is imported
here that takes long, so that a process can begin with it.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
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
"""What stands for a character that a terminal's encoding does not have; a question mark for any other."""

ERRORS = "esper.plain"


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error(ERRORS, _plainly)


class _Unfailing(io.FileIO):
    """A descriptor that takes everything: once it fails, all that comes is thrown away, that of children too.

    Attributes:
        failed: whether it has.
    """

    failed = False

    def write(self, data: Buffer) -> int:
        """Write, or throw away. Waits for a full pipe that does not block by itself."""
        view = memoryview(data)
        try:
            while (count := super().write(view)) is None:
                select.select([], [self], [])
        # The reader is gone, the disk full, the terminal closed: whatever it is, there is nobody to tell.
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
    """Make standard output and error of this process take everything, whatever becomes of what is behind them.

    Characters that their encoding does not have are shown by others. A stream that is closed is opened on nothing, so
    that no file of the run gets its descriptor. Streams that somebody has put in their place are left alone.
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
    """Whether nothing yet has kept what is said on standard output from getting where it should."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return not (isinstance(raw, _Unfailing) and raw.failed)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Where to draw. Text is shown as it is: brackets in a path are no markup, and colons around a word no emoji."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Show lines as they are, however long they are."""
    console(stderr=stderr).print("\n".join(lines), soft_wrap=True)
