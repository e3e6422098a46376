"""Incremental reading of a growing file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

CHUNK_BYTES = 8 << 20
"""Bytes of the file to read at a time."""


class News(NamedTuple):
    """Complete lines appended since the last read; ``restarted`` if the file started again, ``skipped`` if its
    beginning was not read.
    """

    lines: list[bytes]
    restarted: bool
    skipped: bool


class Follower:
    """Reader of one growing file of lines.

    A file that became shorter or was replaced is read again from its start: a resumed run truncates its files to its
    checkpoint.

    Args:
        path: the file; it need not exist yet.
        tail_bytes: number of bytes of the existing content to read, from its end; ``None`` = all.

    Attributes:
        bytes_read: total number of bytes read.
    """

    def __init__(self, path: Path, tail_bytes: int | None = None) -> None:
        self._path, self._tail = path, tail_bytes
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self.bytes_read = 0

    def read(self) -> News:
        """Return new lines. An incomplete last line is kept for the next read.

        Raises:
            OSError: the file exists but cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return News([], restarted=False, skipped=False)
        with file:
            found = os.fstat(file.fileno())
            file_id = found.st_dev, found.st_ino
            restarted = self._file_id is not None and (file_id != self._file_id or found.st_size < self._offset)
            skipped = False
            if restarted or self._file_id is None:
                self._offset, self._rest = 0, b""
                if self._tail is not None and found.st_size > self._tail:
                    self._offset, skipped = found.st_size - self._tail, True
            self._file_id = file_id
            file.seek(self._offset)
            parts = [self._rest]
            while part := file.read(CHUNK_BYTES):
                parts.append(part)
                self._offset += len(part)
                self.bytes_read += len(part)
        *lines, self._rest = b"".join(parts).split(b"\n")
        return News(lines[1:] if skipped else lines, restarted=restarted, skipped=skipped)
