"""Tiny data sets in the exact formats of the real ones, and a server on this machine that has them."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from esper.tasks import cifar10
from esper.tasks.downloads import Source
from esper.tasks.published import Census
from tests.processes import LIMIT

BATCH = 24
"""Images in each of CIFAR-10's six files."""


def source(name: str, content: bytes) -> Source:
    """Describe a published file as a source."""
    digest, held = hashlib.md5(content).hexdigest(), gzip.decompress(content) if name.endswith("ubyte.gz") else content
    return Source(
        name=name,
        url="http://127.0.0.1:9/nowhere",
        size=len(content),
        hash=f"md5:{digest}",
        content=f"sha256:{hashlib.sha256(held).hexdigest()}",
    )


def idx(array: NDArray[np.uint8], *, compressed: bool = True) -> bytes:
    """An idx file."""
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0) if compressed else header + array.tobytes()


def cifar_batch(number: int, count: int = BATCH) -> tuple[NDArray[np.uint8], list[int]]:
    """Rows of 3,072 pixels, red before green before blue, and labels; every class is there."""
    draw = np.random.default_rng(number)
    labels = [(number + image) % 10 for image in range(count)]
    pixels = draw.integers(0, 160, (count, 3072))
    pixels[:, :1024] += 9 * np.array(labels)[:, None]
    return pixels.astype(np.uint8), labels


class _OldPickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes as Python 2 did: text as ``str``, whose opcodes are those of bytes, and NumPy's old module names."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_old_str(self, value: bytes) -> None:
        short = len(value) < 256
        head = pickle.SHORT_BINSTRING + bytes((len(value),)) if short else pickle.BINSTRING
        self.write(head + (b"" if short else len(value).to_bytes(4, "little")) + value)
        self.memoize(value)

    def save_global(self, obj: object, name: str | None = None) -> None:
        module = "numpy.core.multiarray" if getattr(obj, "__name__", "") == "_reconstruct" else "numpy"
        self.write(pickle.GLOBAL + f"{module}\n{obj.__name__}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)

    dispatch[bytes] = save_old_str
    dispatch[str] = lambda self, value: self.save_old_str(value.encode("latin1"))
    dispatch[type] = save_global
    dispatch[type(np.zeros(0).__reduce__()[0])] = save_global


def old_pickle(value: object) -> bytes:
    """Protocol 2, as the published batches are."""
    file = io.BytesIO()
    _OldPickler(file, protocol=2).dump(value)
    return file.getvalue()


def cifar_archive(layout: cifar10.Layout) -> bytes:
    """A whole archive with few images."""
    files = {}
    for number, name in enumerate((*layout.train, layout.test)):
        pixels, labels = cifar_batch(number)
        if name.endswith(".bin"):
            files[name] = b"".join(bytes((label,)) + row.tobytes() for row, label in zip(pixels, labels, strict=True))
            continue
        names = [f"image_{number}_{row}.png" for row in range(len(labels))]
        files[name] = old_pickle({"data": pixels, "labels": labels, "batch_label": name, "filenames": names})
    return tar({f"{layout.folder}/{name}": content for name, content in {"readme.html": b"<a>", **files}.items()})


def tar(files: dict[str, bytes]) -> bytes:
    """A compressed tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)


def published(layout: cifar10.Layout, content: bytes) -> cifar10.Layout:
    """The layout with another archive, and what the images of :func:`cifar_batch` are known by."""
    censuses = _census(range(5)), _census(range(5, 6))
    return replace(layout, source=source(layout.source.name, content), censuses=censuses)


def _census(numbers: range) -> Census:
    batches = [cifar_batch(number) for number in numbers]
    labels = [label for _, own in batches for label in own]
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 1024)
    return Census(
        count=len(labels),
        per_class=tuple(labels.count(label) for label in range(10)),
        sums=tuple(int(pixels[:, channel].sum()) for channel in range(3)),
    )


class Server:
    """Serves files and keeps what it was asked for.

    Attributes:
        files: by name; what is not there is answered by 404.
        promised: lengths to announce in place of the true ones, by name.
        breaks: bytes of an answer after which the connection is dropped, by name.
        requests: names, in the order in which they were asked for.
        url: address of the folder.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.promised, self.breaks = files, dict[str, int](), dict[str, int]()
        self.requests = list[str]()
        self.held = threading.Event()
        self.held.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                outer.requests.append(name)
                if name not in outer.files:
                    self.send_error(404)
                    return
                content = outer.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(outer.promised.get(name, len(content))))
                self.end_headers()
                content = content[: outer.breaks.get(name)]
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                outer.held.wait(LIMIT)
                self.wfile.write(content[len(content) // 2 :])

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data"


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """A server that runs meanwhile."""
    server = Server(files)
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.held.set()
        server.server.shutdown()
        server.server.server_close()
        thread.join()


def left_in(folder: Path) -> set[str]:
    """List everything below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
