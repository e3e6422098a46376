"""Comparison of data with the published data set, by content rather than by file name."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from esper.runtime.cache import cache_dir
from esper.runtime.terminal import say
from esper.tasks.data import Split
from esper.tasks.downloads import DataError, Source, size_shown
from esper.tasks.options import TaskOptions

ELSEWHERE = "remove it, to look for it elsewhere, or name a folder that has it with task.root=<folder>"


def require_equal(
    task: str, options: TaskOptions, what: Path | str, found: object, expected: object, remedy: str = ELSEWHERE
) -> None:
    """Refuse data that differs from the published data, unless the options allow other data.

    Args:
        task, options: name of the task, and its options.
        what: place of the data, for the message.
        found, expected: identifying values to compare.
        remedy: instructions to obtain the published data.

    Raises:
        DataError: they differ.
    """
    if options.verify and found != expected:
        raise DataError(
            f"task {task}: {what} is not what was published: expected {expected}, found {found}. To have that, "
            f"{remedy}; to train on this data, use task.verify=false"
        )


def digest(*contents: bytes) -> str:
    """Return ``sha256:<hex>`` of content."""
    whole = hashlib.sha256()
    for content in contents:
        whole.update(content)
    return f"sha256:{whole.hexdigest()}"


def require_file(task: str, options: TaskOptions, path: Path, source: Source) -> None:
    """Refuse a file that differs from the published one in any byte.

    A file is hashed once: the user's cache stores the result by path, size and time.

    Raises:
        DataError: it differs, or cannot be read.
    """
    if not options.verify:
        return
    try:
        state = path.stat()
        if state.st_size != source.size:
            require_equal(task, options, path, f"{state.st_size} bytes", f"{source.size} bytes")
        key = f"{path.absolute()} {state.st_size} {state.st_mtime_ns} {source.hash}"
        mark = cache_dir() / "verified" / hashlib.sha256(key.encode()).hexdigest()
        if mark.exists():
            return
        say(f"checking {path} ({size_shown(source.size)}) against its published hash, once", stderr=True)
        algorithm = source.hash.partition(":")[0]
        with path.open("rb") as file:
            found = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    except OSError as error:
        raise DataError(f"task {task}: cannot read {path} ({error.strerror})") from None
    require_equal(task, options, path, found, source.hash)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, no more
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Statistics that identify labelled images whatever their file format.

    Attributes:
        count: number of images.
        per_class: number of images of each class, from class 0.
        sums: sum of the pixels of each channel.
    """

    count: int
    per_class: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, split: Split, num_classes: int) -> Census:
        """Compute the census of ``uint8`` images."""
        pixels = split.inputs.flatten(2).numpy()
        return cls(
            count=len(split),
            per_class=tuple(int((split.targets == label).sum()) for label in range(num_classes)),
            sums=tuple(pixels.sum(axis=2, dtype="uint32").sum(axis=0, dtype="int64").tolist()),
        )

    def __str__(self) -> str:
        classes, sums = (", ".join(map(str, numbers)) for numbers in (self.per_class, self.sums))
        return f"{self.count} images ({classes} of the classes), channels that add up to {sums}"
