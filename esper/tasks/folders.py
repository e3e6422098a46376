"""Where the files of a task are on disk."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from esper.runtime.cache import cache_dir
from esper.tasks.downloads import DataError
from esper.tasks.options import TaskOptions


def data_folders(task: str, options: TaskOptions) -> tuple[Path, Path]:
    """Where a task's files may be: in a folder with the task's name under the root, or in the root itself."""
    root = options.root or cache_dir() / "data"
    return root / task, root


def find(folders: Sequence[Path], *names: str) -> Path | None:
    """The first file or folder of one of these names; an earlier folder wins over an earlier name.

    Raises:
        DataError: a folder cannot be looked into.
    """
    paths = (folder / name for folder in folders for name in names)
    try:
        return next((path for path in paths if path.exists()), None)
    except OSError as error:
        raise DataError(f"task.root: cannot look for {error.filename} ({error.strerror})") from None


def read_gzip(path: Path) -> bytes:
    """Bytes of a file that may be compressed.

    Raises:
        DataError: it is damaged or cannot be read.
    """
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path} ({error}): remove it, so that it is looked for elsewhere") from None
