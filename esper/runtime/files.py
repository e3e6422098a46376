"""Atomic writes, after which a reader or a crash sees a file as before or as after, never in part; and locks."""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Error numbers of a file system that is full or cannot be written."""


def unwritable(error: BaseException | None) -> OSError | None:
    """Return the file system error that caused an exception, ``None`` if something else did.

    A library that closes its file after such an error often raises another one on the way.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this file's name to errors of the file system, which do not always contain it."""
    try:
        yield
    except Exception as error:
        refusal = unwritable(error)
        if refusal is not None:
            refusal.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that atomically replaces the file at ``path`` on success, and is removed on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that atomically replaces an empty or missing one, and is removed on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    unfinished.mkdir()
    try:
        yield unfinished
        os.replace(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by this text atomically, and flush it to disk."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_csv(path: Path, header: Iterable[object], rows: Iterable[Iterable[object]], end: str = "\r\n") -> None:
    """Replace a CSV file, creating its folder; ``None`` is an empty cell, and ``end`` terminates lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=end)
        writer.writerow(header)
        writer.writerows(rows)


def is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def try_lock(file: IO[str]) -> bool:
    """Try to lock a file until it is closed; return false if another process holds the lock. A file system without
    locks counts as free.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks offers no protection; the user must avoid two runs at once
        return True
    return True
