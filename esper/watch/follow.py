"""Reading a file that grows: only what was appended since the last time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

CHUNK_BYTES = 8 << 20
"""Read at a time."""


class News(NamedTuple):
    """Whole lines appended since the last look; ``restarted`` if they begin anew, ``skipped`` if not at the start."""

    lines: list[bytes]
    restarted: bool
    skipped: bool


class Follower:
    """Follows one file of lines.

    A file that became shorter, or that another one has replaced, is read from its start: a resumed run cuts its files
    back to its checkpoint.

    Args:
        path: the file; it need not exist yet.
        tail_bytes: how much of what is there at first is read, from its end; ``None`` = all.

    Attributes:
        bytes_read: in all.
    """

    def __init__(self, path: Path, tail_bytes: int | None = None) -> None:
        self._path, self._tail = path, tail_bytes
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self.bytes_read = 0

    def read(self) -> News:
        """What is new. An unfinished last line waits for its end.

        Raises:
            OSError: the file is there but cannot be read.
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
