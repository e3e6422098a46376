"""Downloads: once, complete or not at all; every failure is one line with the remedy."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from processes import LIMIT, started, wait_for

from esper.tasks.downloads import CHUNK, DataError, Source, fetch, unpack
from tests.tasks.archives import Server, left_in, serving, source, tar
from tests.warm import WarmPython

CONTENT = bytes(range(256)) * 800
NAME = "images.gz"
FILE = source(NAME, CONTENT)


# pooch leaves the connection of a failed download to the collector: it is called here, where nobody minds.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("warm_children"),
]


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Exclude what earlier tests keep from garbage collection after each test, which would take most of its time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({NAME: CONTENT}) as running:
        yield running


def refused(expected: str, folder: Path, url: str | None, file: Source = FILE) -> None:
    """Fetching fails with one line that names the problem, the file, its place, and the ways out. Nothing stays."""
    with pytest.raises(DataError) as caught:
        fetch("toy", file, folder, url)
    message = str(caught.value)
    assert message.startswith("task toy: ")
    for part in (expected, f"Expected {NAME} (", file.hash.replace(":", " "), str(folder), "task.root=", "task.url="):
        assert part in message
    assert "\n" not in message
    assert left_in(folder) == set()


@pytest.mark.slow
def test_a_file_is_downloaded_once_and_then_found_without_a_network(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = fetch("toy", FILE, tmp_path / "new" / "toy", server.url)
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path / "new") == {"toy", f"toy/{NAME}"}
    assert f"downloading {NAME} (200 KiB, md5 " in capfd.readouterr().err
    server.files.clear()
    assert fetch("toy", FILE, tmp_path / "new" / "toy", server.url) == path
    assert fetch("toy", FILE, tmp_path / "new" / "toy") == path
    assert server.requests == [NAME]


def start(folder: Path, url: str) -> AbstractContextManager[subprocess.Popen[str]]:
    plain = {"name": FILE.name, "url": FILE.url, "size": FILE.size, "hash": FILE.hash}
    words = [sys.executable, "-m", "tests.tasks.fetching", json.dumps(plain), str(folder), url]
    return started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_four_processes_at_once_download_once(server: Server, tmp_path: Path) -> None:
    server.held.clear()
    with ExitStack() as stack:
        processes = [stack.enter_context(start(tmp_path, server.url)) for _ in range(4)]
        wait_for(lambda: server.requests)
        time.sleep(0.5)
        server.held.set()
        ends = [process.communicate(timeout=LIMIT) for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, ends
    assert server.requests == [NAME]
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert left_in(tmp_path) == {NAME}


def test_whoever_waits_for_another_process_says_so(server: Server, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / f".{NAME}.lock")
    with ExitStack() as stack:
        lock.acquire()
        stack.callback(lock.release)
        process = stack.enter_context(start(tmp_path, server.url))
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting for another process that makes {tmp_path / NAME}\n"
        lock.release()
        assert process.wait(LIMIT) == 0
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_what_a_killed_process_leaves_is_never_taken_for_the_file(server: Server, tmp_path: Path) -> None:
    server.held.clear()
    with start(tmp_path, server.url):  # killed at the end
        wait_for(lambda: any(path.is_file() and path.stat().st_size for path in tmp_path.rglob("*/*")))
    assert not (tmp_path / NAME).exists()
    assert left_in(tmp_path), "killed in the middle"
    server.held.set()
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert left_in(tmp_path) == {NAME}


def test_an_interrupted_download_leaves_nothing(server: Server, tmp_path: Path, warm_python: WarmPython) -> None:
    server.held.clear()
    with start(tmp_path, server.url) as process:
        wait_for(lambda: any(path.is_file() and path.stat().st_size for path in tmp_path.rglob("*/*")))
        # Not to the process that was started, which would ignore it where these tests are a shell's background job.
        os.kill(warm_python.process_of(process.pid), signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT)
    assert "KeyboardInterrupt" in error
    assert left_in(tmp_path) == set()


def test_a_download_that_broke_off_is_made_anew(server: Server, tmp_path: Path) -> None:
    server.breaks[NAME] = CHUNK + 1
    refused(f"{server.url}/{NAME} broke off. ", tmp_path, server.url)
    del server.breaks[NAME]
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.requests == [NAME, NAME]


def test_a_truncated_download_is_refused(server: Server, tmp_path: Path) -> None:
    server.promised[NAME] = 2 * len(CONTENT)
    refused(f"{server.url}/{NAME} broke off", tmp_path, server.url)


def test_another_file_of_that_name_is_refused(server: Server, tmp_path: Path) -> None:
    server.files[NAME] = CONTENT[:-1] + b"x"
    refused(f"{server.url}/{NAME} is not the published file: its hash differs", tmp_path, server.url)


def test_a_server_without_the_file_is_named(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    refused(f"{server.url}/{NAME} cannot be downloaded (404", tmp_path, server.url)


def test_a_server_that_is_down_is_named(server: Server, tmp_path: Path) -> None:
    refused(f"http://127.0.0.1:9/nowhere/{NAME} cannot be downloaded (", tmp_path, None)
    assert server.requests == []


def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    refused("not-an-address/images.gz cannot be downloaded (", tmp_path, "not-an-address")


def test_too_little_room_is_seen_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=len(CONTENT) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(f"{NAME} takes 200 KiB, but {tmp_path} has 200 KiB left", tmp_path, server.url)
    assert server.requests == []


def test_a_disk_that_fills_up_meanwhile_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pooch

    def fill(self: object, url: str, output_file: str, pooch: object) -> None:
        Path(output_file).write_bytes(CONTENT[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fill)
    refused(f"cannot write to {tmp_path} (No space left on device)", tmp_path, server.url)


def test_a_folder_that_cannot_be_made_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write to .*file/toy \(Not a directory\)"):
        fetch("toy", FILE, tmp_path / "file" / "toy", server.url)


ARCHIVE = tar({"top/a": b"first", "top/b": b"second", "top/unwanted": b"x", "../evil": b"x"})
TAR = source("top.tar.gz", ARCHIVE)


def test_an_archive_is_unpacked_once_and_only_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / TAR.name).write_bytes(ARCHIVE)
    folder = unpack("toy", TAR, tmp_path / TAR.name, "top", ("a", "b"))
    assert left_in(tmp_path) == {TAR.name, "top", "top/a", "top/b"}
    assert [(folder / name).read_bytes() for name in ("a", "b")] == [b"first", b"second"]
    (tmp_path / TAR.name).unlink()
    assert unpack("toy", TAR, tmp_path / TAR.name, "top", ("a", "b")) == folder


@pytest.mark.parametrize(
    ("content", "trusted", "message"),
    [
        (ARCHIVE[:-30], False, "its hash differs"),
        (ARCHIVE[:-30], True, "top.tar.gz is damaged"),
        (b"no archive", True, "top.tar.gz is damaged"),
        (tar({"top/a": b"first"}), True, "top/b"),
    ],
    ids=["another", "cut", "no archive", "a file less"],
)
def test_a_damaged_archive_leaves_no_folder(content: bytes, trusted: bool, message: str, tmp_path: Path) -> None:
    path = tmp_path / TAR.name
    path.write_bytes(content)
    file = replace(TAR, hash=source(TAR.name, content).hash) if trusted else TAR
    with pytest.raises(DataError) as caught:
        unpack("toy", file, path, "top", ("a", "b"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == {TAR.name}


def test_an_archive_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / TAR.name).mkdir()
    with pytest.raises(DataError, match=r"task toy: .*top.tar.gz is a folder. Expected top.tar.gz \("):
        unpack("toy", TAR, tmp_path / TAR.name, "top", ("a",))
