"""Files that a reader, or a crash, sees as they were or as they are now, never in part; and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Error numbers of a system that has no more room, or none to write at all."""


def unwritable(error: BaseException | None) -> OSError | None:
    """The refusal of the file system from which an error came, ``None`` if it came from anything else.

    A library that closes its file after a refusal often raises an error of its own on the way.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of the file system name this file, which only the one that opened it knows."""
    try:
        yield
    except Exception as error:
        refusal = unwritable(error)
        if refusal is not None:
            refusal.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what becomes the file at ``path`` in one step; nothing is left there if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by this text, on the disk itself."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def is_at(file: IO[str], path: Path) -> bool:
    """Tell whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def try_lock(file: IO[str]) -> bool:
    """Take the lock if it is free, and tell whether it was; it is held until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be known, and two runs at once are the user's to avoid
        return True
    return True
