"""Files of data sets: found on disk, or downloaded once, complete or not at all.

A download goes to a temporary folder under a lock, is checked, and moved to its place atomically, so that a file in its
place is always complete. The next process that holds the lock removes the remains of a killed one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from esper.runtime.terminal import console, say

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT = (10.0, 30.0)
"""Seconds to wait for a server to answer, and between two chunks of a file."""

CHUNK = 1 << 16


class DataError(ValueError):
    """Missing or wrong data. The message is one line: which file was expected where, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A published file.

    Attributes:
        name: name of the file.
        url: address of its folder.
        size: size of the file in bytes.
        hash: algorithm and digest, ``md5:<hex>`` or ``sha256:<hex>``.
        content: ``sha256:<hex>`` of a compressed file's content, however it is compressed; empty if not needed.
    """

    name: str
    url: str
    size: int
    hash: str
    content: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({size_shown(self.size)}, {self.hash.replace(':', ' ')})"


def fetch(task: str, source: Source, folder: Path, url: str | None = None) -> Path:
    """Return the path of a published file, downloading it if necessary.

    Args:
        task: name of the task, for messages.
        source: the file.
        folder: destination.
        url: address of another folder that has it.

    Raises:
        DataError: it cannot be obtained. No partial file remains.
    """
    path = folder / source.name
    with _explained(task, source, folder):
        if path.exists():
            return path
        with _alone(path) as partial:
            if not path.exists():
                _download(source, f"{(url or source.url).rstrip('/')}/{source.name}", partial)
                os.replace(partial / source.name, path)
    return path


def unpack(task: str, source: Source, archive: Path, top: str, members: Sequence[str], *, verify: bool = True) -> Path:
    """Unpack members of a tar archive into a folder beside it, unless done already; return the folder.

    Only the named members are read, and only their bytes: paths and permissions in the archive have no effect.

    Args:
        task, source: name of the task and the archive's source, for messages and its hash.
        archive: path of the archive.
        top: folder in the archive, and name of the new folder.
        members: names of the files in it.
        verify: refuse an archive other than the published one.

    Raises:
        DataError: the archive is damaged or differs. No folder remains.
    """
    folder = archive.parent / top
    with _explained(task, source, archive.parent):
        if folder.exists():
            return folder
        with _alone(folder) as partial:
            if folder.exists():
                return folder
            if not archive.is_file():
                raise _Refused(f"{archive} is a folder")
            if verify and not _is(archive, source):
                raise _Refused(f"{archive} is not the published file: its hash differs (task.verify=false takes it)")
            with tarfile.open(archive) as tar:
                for name in members:
                    content = tar.extractfile(f"{top}/{name}")
                    if content is None:
                        raise _Refused(f"{archive} holds no file {top}/{name}")
                    with content, open(partial / name, "wb") as file:
                        shutil.copyfileobj(content, file)
            os.replace(partial, folder)
    return folder


def _is(path: Path, source: Source) -> bool:
    algorithm, digest = source.hash.split(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == digest


class _Refused(Exception):
    """A fault of a file, without the rest of the message."""


@contextmanager
def _explained(task: str, source: Source, folder: Path) -> Iterator[None]:
    """Turn an error into one line that names the fault, the expected file and place, and the remedy."""
    try:
        yield
        return
    except _Refused as error:
        problem = str(error)
    except OSError as error:
        damaged = error.errno is None
        problem = _damaged(source, error) if damaged else f"cannot write to {folder} ({error.strerror})"
    except (tarfile.TarError, zlib.error, EOFError, KeyError) as error:
        problem = _damaged(source, error)
    raise DataError(
        f"task {task}: {problem}. Expected {source} in {folder}: put it there yourself, or name a folder that has it "
        "with task.root=<folder>, or a mirror with task.url=<address>"
    )


def _damaged(source: Source, error: Exception) -> str:
    """Describe an error of ``tarfile``, which takes several lines, in one line."""
    return f"{source.name} is damaged ({str(error).partition(chr(10))[0].rstrip(':')})"


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield an empty folder to make ``path`` in, under a lock; remove both afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, folder = FileLock(path.with_name(f".{path.name}.lock")), path.with_name(f".{path.name}.partial")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that makes {path}", stderr=True)
        lock.acquire()
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # in a shared folder it may be another user's
            os.unlink(lock.lock_file)  # while it is held: a waiting process notices and makes a new one
        lock.release()


def _download(source: Source, url: str, folder: Path) -> None:
    """Download the file into the folder."""
    # Imported here, because only a download needs these slow imports.
    import pooch
    import requests

    free = shutil.disk_usage(folder).free
    if free < source.size:
        raise _Refused(
            f"{source.name} takes {size_shown(source.size)}, but {folder.parent} has {size_shown(free)} left"
        )
    pooch.get_logger().setLevel("WARNING")  # it is reported here, once
    try:
        with _progress(source, url) as bar:
            # Request the stored bytes: some servers would compress them once more.
            headers = {"Accept-Encoding": "identity"}
            get = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT, headers=headers)
            pooch.retrieve(url, source.hash, source.name, folder, downloader=get)
    except requests.RequestException as error:
        raise _Refused(f"{url} {_what_happened(error)}") from None
    except ValueError:
        raise _Refused(f"{url} is not the published file: its hash differs") from None


def _what_happened(error: Exception) -> str:
    """Describe a network error in a few words."""
    import requests

    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "broke off"
    if isinstance(error, requests.Timeout):
        return "does not answer"
    if isinstance(error, requests.HTTPError):
        return f"cannot be downloaded ({str(error).partition(' for url: ')[0]})"
    reason: object = error
    while isinstance(reason, Exception) and reason.args and isinstance(reason.args[0], Exception):
        reason = reason.args[0]  # others wrap it
    innermost = str(getattr(reason, "reason", reason)).rpartition(": ")[2]
    return f"cannot be downloaded ({innermost})"


class _Bar:
    """Interface of pooch's progress bars."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.total = total  # pooch sets it
        self._progress, self._task = progress, progress.add_task("", total=total)

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.refresh()


@contextmanager
def _progress(source: Source, url: str) -> Iterator[_Bar]:
    """Show a progress bar in a terminal; otherwise announce the download in one line."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    on = console(stderr=True)
    if not on.is_terminal:
        say(f"downloading {source} from {url}", stderr=True)
    columns = TextColumn(source.name, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=on, disable=not on.is_terminal) as progress:
        yield _Bar(progress, source.size)


def size_shown(size: int) -> str:
    """Format a number of bytes with a unit."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
