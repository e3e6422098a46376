"""Files of data sets: found on disk, or downloaded once, whole or not at all.

A download goes to a folder of its own under a lock, is checked, and moved to its place in one step: whoever finds a
file there finds all of it. One that broke off is gone on with by the next process that holds the lock
(:mod:`esper.tasks.leftover`); anything else that a killed process leaves is removed by it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from esper.runtime.terminal import console, say
from esper.tasks.leftover import Leftover, ResumingDownloader

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT = (10.0, 30.0)
"""Seconds for a server to answer, and between two pieces of a file."""

CHUNK = 1 << 16


class DataError(ValueError):
    """Data that is not there or not what it should be. One line: what was expected where, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file as it was published.

    Attributes:
        name: of the file.
        url: address of the folder that it is in.
        size: in bytes.
        hash: algorithm and digest, ``md5:<hex>`` or ``sha256:<hex>``.
        content: ``sha256:<hex>`` of what a compressed file holds, however it is compressed; empty where nobody asks.
    """

    name: str
    url: str
    size: int
    hash: str
    content: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({size_shown(self.size)}, {self.hash.replace(':', ' ')})"


def fetch(task: str, source: Source, folder: Path, url: str | None = None) -> Path:
    """A published file, downloaded if it is not there yet.

    Args:
        task: whose file it is, for messages.
        source: the file.
        folder: where it is to be.
        url: address of another folder that has it.

    Raises:
        DataError: it cannot be had. What came of it before the connection broke is kept for the next time.
    """
    path = folder / source.name
    with _explained(task, source, folder):
        if path.exists():
            return path
        with _locked(path) as partial:
            if not path.exists():
                _download(source, f"{(url or source.url).rstrip('/')}/{source.name}", partial)
                os.replace(partial / source.name, path)
            shutil.rmtree(partial, ignore_errors=True)
    return path


def unpack(task: str, source: Source, archive: Path, top: str, members: Sequence[str], *, verify: bool = True) -> Path:
    """Members of a tar archive in a folder beside it, unpacked if they are not there yet.

    Only the named members are read, and only their bytes: nothing that an archive says about paths or rights counts.

    Args:
        task, source: whose archive it is, for messages and its hash.
        archive: where it is.
        top: folder in the archive, and the one that is made.
        members: names of the files in it.
        verify: refuse another archive than the published one.

    Raises:
        DataError: the archive is damaged or is another one. No folder stays.
    """
    folder = archive.parent / top
    with _explained(task, source, archive.parent):
        if folder.exists():
            return folder
        with _locked(folder) as partial, _emptied(partial):
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
    """What is wrong with a file, without the rest of the message."""


@contextmanager
def _explained(task: str, source: Source, folder: Path) -> Iterator[None]:
    """Say in one line what went wrong, what was expected where, and how to provide it."""
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
        f"task {task}: {problem}. Expected {source} in {folder}: put it there by hand, or name a folder that has it "
        "with task.root=<folder>, or a mirror with task.url=<address>"
    )


def _damaged(source: Source, error: Exception) -> str:
    """In one line, of which ``tarfile`` needs several."""
    return f"{source.name} is damaged ({str(error).partition(chr(10))[0].rstrip(':')})"


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """The folder to make ``path`` in, while no other process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _waited_for(FileLock(path.with_name(f".{path.name}.lock")), path):
        yield path.with_name(f".{path.name}.partial")


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """The folder is empty, whatever a killed process left in it, and gone afterwards, unless it was moved."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _waited_for(lock: FileLock, path: Path) -> Iterator[None]:
    """Hold the lock, and say so if another process has to be waited for."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that makes {path}", stderr=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _download(source: Source, url: str, folder: Path) -> None:
    """Make the file in the folder, from what is there of it and what the server has."""
    # Imported here: a download needs it, and nothing else should wait for it.
    import requests

    leftover = Leftover(folder)
    try:
        leftover.prepare(source.name)
        _require_room(source, leftover)
        _retrieve(source, url, leftover)
    except requests.RequestException as error:
        kept = leftover.size()
        rest = f" after {size_shown(kept)}, with which the next start goes on" if kept else ""
        raise _Refused(f"{url} {_what_happened(error)}{rest}") from None
    except ValueError:
        raise _Refused(f"{url} is not the published file: its hash differs") from None
    except OSError:
        leftover.drop()  # a full disk is not to be kept full
        raise
    finally:
        if not leftover.size() and not (folder / source.name).exists():
            leftover.drop()


def _require_room(source: Source, leftover: Leftover) -> None:
    missing, free = source.size - leftover.size(), shutil.disk_usage(leftover.folder).free
    if free < missing:
        raise _Refused(
            f"{source.name} takes {size_shown(missing)}, but {leftover.folder.parent} has {size_shown(free)} left"
        )


def _retrieve(source: Source, url: str, leftover: Leftover) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # it is said here, once
    with _progress(source, url, leftover.size()) as bar:
        options = {"progressbar": bar, "chunk_size": CHUNK, "timeout": TIMEOUT}
        downloader = ResumingDownloader(leftover, source.size, bar.begin, **options)
        try:
            pooch.retrieve(url, source.hash, source.name, leftover.folder, downloader=downloader)
        except ValueError:
            if not downloader.resumed:
                raise
            # Perhaps what was kept is not of this file. It is gone now: this starts from the beginning.
            pooch.retrieve(url, source.hash, source.name, leftover.folder, downloader=downloader)


def _what_happened(error: Exception) -> str:
    """A few words for an error of the network."""
    import requests

    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "broke off"
    if isinstance(error, requests.Timeout):
        return "does not answer"
    if isinstance(error, requests.HTTPError):
        return f"cannot be had ({str(error).partition(' for url: ')[0]})"
    reason: object = error
    while isinstance(reason, Exception) and reason.args and isinstance(reason.args[0], Exception):
        reason = reason.args[0]  # others wrap it
    innermost = str(getattr(reason, "reason", reason)).rpartition(": ")[2]
    return f"cannot be had ({innermost})"


class _Bar:
    """A download's progress, as pooch reports it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.total = total  # pooch sets it to what is still to come
        self._size, self._start = total, 0
        self._progress, self._task = progress, progress.add_task("", total=total)

    def begin(self, start: int) -> None:
        """Some bytes are there already."""
        self._start = start
        self.reset()

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self._size, completed=self._start)

    def close(self) -> None:
        self._progress.refresh()


@contextmanager
def _progress(source: Source, url: str, kept: int) -> Iterator[_Bar]:
    """A bar in a terminal; otherwise one line that says what is coming."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    on = console(stderr=True)
    if not on.is_terminal:
        there = f", of which {size_shown(kept)} are there," if kept else ""
        say(f"downloading {source}{there} from {url}", stderr=True)
    columns = TextColumn(source.name, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=on, disable=not on.is_terminal) as progress:
        yield _Bar(progress, source.size)


def size_shown(size: int) -> str:
    """A number of bytes for people."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
