"""Running code that is not Esper's: whatever goes wrong in it is said in one line, with the place of its source."""

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
"""How the names of source files begin that are not the user's."""


class UsersCodeError(ValueError):
    """What went wrong in a user's own code, in one line; before a run it is a request that cannot be met."""


@contextmanager
def of_the_user(what: str) -> Iterator[None]:
    """Run a user's own code.

    Args:
        what: the beginning of the line that says what went wrong: the key that names the code, and what it was to do.

    Raises:
        UsersCodeError: it raised anything, or asked to exit. This is not Esper's code: there is no telling what.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_request(error):
            raise
        raise UsersCodeError(f"{what}: {in_one_line(error)}") from error


def blame(what: str, error: BaseException) -> None:
    """Raise a :class:`UsersCodeError` from what came out of a mix of Esper's code and a user's, if it is the user's.

    Costs nothing where nothing fails, unlike :func:`of_the_user`: for what runs many times a second.
    """
    if not isinstance(error, UsersCodeError) and not is_request(error) and place(error) is not None:
        raise UsersCodeError(f"{what}: {in_one_line(error)}") from error


def is_request(error: BaseException) -> bool:
    """Whether it is a request to end, which may come while anything runs."""
    return isinstance(error, SystemExit) and type(error) is not SystemExit


def in_one_line(error: BaseException) -> str:
    """An exception's type and first line, and the file and line of the user's code, if it came from there."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = f"it asks to exit with code {error.code!r}" if isinstance(error, SystemExit) else ""
    said = said or f"{type(error).__name__}: {lines[0] if lines else 'no more is said'}"
    where = place(error)
    return said if where is None else f"{said} ({where})"


def place(error: BaseException) -> str | None:
    """File and line of the user's code in which an exception was raised, ``None`` if it was raised elsewhere."""
    if isinstance(error, SyntaxError) and error.filename is not None:  # it never ran
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def is_ours(function: Callable[..., object]) -> bool:
    """Whether a function or a class is Esper's own, whose refusals are in one line already."""
    return str(getattr(function, "__module__", "")).startswith("esper.")


def named(function: Callable[..., object]) -> str:
    """A function by its module and name."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"
