"""Execution of users' code, in which any failure is reported in one line with the place in its source."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

_NOT_THEIRS = (
    "<",
    *(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
)
"""Prefixes of source file names that do not belong to the user."""


class UsersCodeError(ValueError):
    """A failure in a user's own code, in one line. Before a run it is reported like an invalid configuration."""


@contextmanager
def of_the_user(what: str) -> Iterator[None]:
    """Run a user's own code, and turn every failure into one line.

    Args:
        what: beginning of the message: the key that names the code, and its task.

    Raises:
        UsersCodeError: the code raised any exception, or asked to exit.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_request(error):
            raise
        raise UsersCodeError(f"{what}: {in_one_line(error)}") from error


def blame(what: str, error: BaseException) -> None:
    """Raise a :class:`UsersCodeError` for an exception from a mix of Esper's and a user's code, if the user's raised
    it.

    Costs nothing unless something fails, unlike :func:`of_the_user`: for code that runs many times a second.
    """
    if not isinstance(error, UsersCodeError) and not is_request(error) and place(error) is not None:
        raise UsersCodeError(f"{what}: {in_one_line(error)}") from error


def is_request(error: BaseException) -> bool:
    """Return whether an exception is a request to stop, which may come while anything runs."""
    return isinstance(error, SystemExit) and type(error) is not SystemExit


def in_one_line(error: BaseException) -> str:
    """Describe an exception by type and first line, with file and line of the user's code if it came from there."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = f"it asks to exit with code {error.code!r}" if isinstance(error, SystemExit) else ""
    said = said or f"{type(error).__name__}: {lines[0] if lines else 'no more is said'}"
    where = place(error)
    return said if where is None else f"{said} ({where})"


def place(error: BaseException) -> str | None:
    """Return file and line of the user's code in which an exception was raised, ``None`` if it was raised elsewhere."""
    if isinstance(error, SyntaxError) and error.filename is not None:  # it never ran
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def is_ours(function: Callable[..., object]) -> bool:
    """Return whether a function or class belongs to Esper, whose errors are in one line already."""
    return str(getattr(function, "__module__", "")).startswith("esper.")


def named(function: Callable[..., object]) -> str:
    """Return a function's module and name."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"
