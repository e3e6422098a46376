"""Search for a task's files on disk."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from esper.runtime.cache import cache_dir
from esper.tasks.downloads import DataError
from esper.tasks.options import TaskOptions


def data_folders(task: str, options: TaskOptions) -> tuple[Path, Path]:
    """Return the folders to search: the one with the task's name under the root, then the root itself."""
    root = options.root or cache_dir() / "data"
    return root / task, root


def find(folders: Sequence[Path], *names: str) -> Path | None:
    """Find the first file or folder with one of these names; an earlier folder takes precedence over an earlier name.

    Raises:
        DataError: a folder cannot be read.
    """
    paths = (folder / name for folder in folders for name in names)
    try:
        return next((path for path in paths if path.exists()), None)
    except OSError as error:
        raise DataError(f"task.root: cannot look for {error.filename} ({error.strerror})") from None


def read_gzip(path: Path) -> bytes:
    """Read a file that may be compressed.

    Raises:
        DataError: it is damaged or cannot be read.
    """
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path} ({error}): remove it, to look for it elsewhere") from None
