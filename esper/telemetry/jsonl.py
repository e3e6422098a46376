"""File loggers: one JSON object per line, keys sorted, written once per iteration.

These files are the record of a run, which stops if they cannot be written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from esper.runtime.files import naming
from esper.runtime.records import Metrics, json_safe
from esper.telemetry.events import Event, to_record
from esper.telemetry.hub import Logger

BUFFER_BYTES = 1 << 20


class _Lines:
    """A file of JSON lines, buffered in memory until flushed; lines that cannot be written completely are not written
    at all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()

    def add(self, record: dict[str, Any]) -> None:
        self._waiting += json.dumps(record, allow_nan=False).encode() + b"\n"
        if len(self._waiting) > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting = memoryview(bytes(self._waiting)), bytearray()
        size = self._file.seek(0, os.SEEK_END)
        try:
            with naming(self._path):
                while waiting:
                    waiting = waiting[self._file.write(waiting) :]
        except OSError:
            self._file.truncate(size)
            raise

    def sync(self) -> None:
        self.flush()
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


class MetricsJsonl(Logger):
    """Logger of ``metrics.jsonl``: one line per iteration, ``iteration`` first, then metrics sorted by name."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._lines = _Lines(path)

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Append one line; values that were not measured, or are not finite, are ``null``."""
        self._lines.add({"iteration": iteration, **json_safe(dict(sorted(metrics.items())))})
        self._lines.flush()

    def flush(self) -> None:
        """Write buffered lines to disk."""
        self._lines.sync()

    def close(self, status: str) -> None:
        """Close the file."""
        self._lines.close()


class EventsJsonl(Logger):
    """Logger of ``events.jsonl``: one line per event, in the order of emission."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._lines = _Lines(path)

    def event(self, event: Event) -> None:
        """Buffer one line."""
        self._lines.add(to_record(event))

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Write the events of this iteration."""
        self._lines.flush()

    def flush(self) -> None:
        """Write buffered lines to disk."""
        self._lines.sync()

    def close(self, status: str) -> None:
        """Write remaining lines and close the file."""
        self._lines.close()
