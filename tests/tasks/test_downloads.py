"""Downloads: once, whole or not at all; every way to fail is one line that says what to do."""

from __future__ import annotations

import errno
import gc
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from filelock import FileLock
from processes import LIMIT, started, wait_for

from esper.tasks.downloads import CHUNK, DataError, Source, fetch, unpack
from tests.tasks.archives import Server, left_in, serving, source, tar

CONTENT = bytes(range(256)) * 800
NAME = "images.gz"
FILE = source(NAME, CONTENT)
HALF = 2 * CHUNK
PARTIAL = f".{NAME}.partial"
CONTENT_KEPT = f"{PARTIAL}/content"
TAG = {"ETag": '"first"'}
DATE = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


# pooch leaves the connection of a failed download to the collector: it is called here, where nobody minds.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """What has been imported so far is not looked through after each test, which would take most of its time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({NAME: CONTENT}) as running:
        yield running


def refused(expected: str, folder: Path, url: str | None, file: Source = FILE, kept: bytes = b"") -> None:
    """Fetching fails with one line that names the problem, the file, its place, and the ways out.

    Nothing stays but ``kept``, the bytes with which the next download can go on.
    """
    with pytest.raises(DataError) as caught:
        fetch("toy", file, folder, url)
    message = str(caught.value)
    assert message.startswith("task toy: ")
    for part in (expected, f"Expected {NAME} (", file.hash.replace(":", " "), str(folder), "task.root=", "task.url="):
        assert part in message
    assert "\n" not in message
    there = {PARTIAL, CONTENT_KEPT, f"{PARTIAL}/mark"} if kept else set()
    assert left_in(folder) == there
    assert not kept or (folder / CONTENT_KEPT).read_bytes() == kept


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


FETCH = """
import sys, json, signal
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
from esper.tasks.downloads import Source, fetch
fetch("toy", Source(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
"""


def start(folder: Path, url: str) -> AbstractContextManager[subprocess.Popen[str]]:
    plain = {"name": FILE.name, "url": FILE.url, "size": FILE.size, "hash": FILE.hash}
    words = [sys.executable, "-c", FETCH, json.dumps(plain), str(folder), url]
    return started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def four_at_once(server: Server, folder: Path, asked: int) -> None:
    """Four processes that want the file, while the server keeps back what it is asked for; all end well."""
    server.held.clear()
    with ExitStack() as stack:
        processes = [stack.enter_context(start(folder, server.url)) for _ in range(4)]
        wait_for(lambda: len(server.requests) >= asked)
        time.sleep(0.5)
        server.held.set()
        ends = [process.communicate(timeout=LIMIT) for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, ends


def test_four_processes_at_once_download_once(server: Server, tmp_path: Path) -> None:
    four_at_once(server, tmp_path, 1)
    assert server.requests == [NAME]
    assert (tmp_path / NAME).read_bytes() == CONTENT


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


def test_an_interrupted_download_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.headers[NAME] = TAG
    server.held.clear()
    with start(tmp_path, server.url) as process:
        wait_for(lambda: any(path.is_file() and path.stat().st_size for path in tmp_path.rglob("*/content")))
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT)
    server.held.set()
    assert "KeyboardInterrupt" in error
    kept = (tmp_path / CONTENT_KEPT).stat().st_size
    assert 0 < kept < len(CONTENT)
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.asked[1] == (f"bytes={kept}-", TAG["ETag"])
    assert left_in(tmp_path) == {NAME}


def broken_off(server: Server, folder: Path, headers: dict[str, str] = TAG) -> None:
    """A first download of which so many bytes came; all but the beginning of a chunk is kept."""
    server.headers[NAME], server.breaks[NAME] = headers, HALF + 1
    refused(f"{NAME} broke off after 128 KiB, with which the next start ", folder, server.url, kept=CONTENT[:HALF])
    del server.breaks[NAME]


@pytest.mark.parametrize("headers", [TAG, DATE, {"ETag": 'W/"weak"', **DATE}], ids=["tag", "date", "weak"])
def test_a_download_that_broke_off_asks_for_the_rest_alone(
    headers: dict[str, str], server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken_off(server, tmp_path, headers)
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    mark = headers.get("Last-Modified", headers.get("ETag"))
    assert server.asked == [(None, None), (f"bytes={HALF}-", mark)]
    assert server.sent == [HALF + 1, len(CONTENT) - HALF]
    assert left_in(tmp_path) == {NAME}
    assert ", of which 128 KiB are there, from " in capfd.readouterr().err


def test_a_download_may_break_off_many_times(server: Server, tmp_path: Path) -> None:
    server.headers[NAME], server.breaks[NAME] = TAG, CHUNK
    for parts in (1, 2, 3):
        refused("broke off", tmp_path, server.url, kept=CONTENT[: parts * CHUNK])
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.sent == [CHUNK, CHUNK, CHUNK, len(CONTENT) - 3 * CHUNK]


def test_what_is_kept_survives_a_server_that_is_down(server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    refused("cannot be had (", tmp_path, None, kept=CONTENT[:HALF])
    content = server.files.pop(NAME)
    refused("cannot be had (404", tmp_path, server.url, kept=CONTENT[:HALF])
    server.files[NAME] = content
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.sent == [HALF + 1, len(CONTENT) - HALF]


@pytest.mark.parametrize("ranges", ["yes", "no", "careless"])
def test_pieces_of_two_files_are_never_put_together(ranges: str, server: Server, tmp_path: Path) -> None:
    """The file was replaced meanwhile, by the published one: it is read whole, whatever the server knows of parts."""
    server.files[NAME] = CONTENT[::-1]
    server.headers[NAME], server.breaks[NAME] = {"ETag": '"old"'}, HALF
    refused("broke off", tmp_path, server.url, kept=CONTENT[::-1][:HALF])
    del server.breaks[NAME]
    server.files[NAME], server.headers[NAME], server.ranges = CONTENT, TAG, ranges
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.asked[1] == (f"bytes={HALF}-", '"old"')
    assert server.asked[2:] == ([(None, None)] if ranges == "careless" else [])
    assert left_in(tmp_path) == {NAME}


def test_a_careless_server_is_seen_through_before_a_byte_of_it_is_kept(server: Server, tmp_path: Path) -> None:
    server.files[NAME], server.headers[NAME], server.breaks[NAME] = CONTENT[::-1], {"ETag": '"old"'}, CHUNK + 1
    refused("broke off", tmp_path, server.url, kept=CONTENT[::-1][:CHUNK])
    server.files[NAME], server.headers[NAME], server.ranges = CONTENT, TAG, "careless"
    refused("broke off", tmp_path, server.url, kept=CONTENT[:CHUNK])


def test_a_server_without_parts_sends_the_whole(server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    server.ranges = "no"
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.sent == [HALF + 1, len(CONTENT)]


def test_without_a_mark_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    server.breaks[NAME] = HALF
    for headers in ({}, {"ETag": 'W/"weak"'}, {**TAG, "Content-Encoding": "br"}):
        server.headers[NAME] = headers
        refused("broke off. ", tmp_path, server.url)
    assert server.asked == [(None, None)] * 3


def test_a_part_that_the_server_does_not_have_is_asked_for_no_more(server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    (tmp_path / CONTENT_KEPT).write_bytes(CONTENT + b"more")
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.asked[1:] == [(f"bytes={len(CONTENT) + 4}-", TAG["ETag"]), (None, None)]


@pytest.mark.parametrize("kept", [b"x" * 50_000, b"x" * len(CONTENT)], ids=["a part", "as much as the whole"])
def test_what_is_kept_and_wrong_is_found_out_and_replaced(kept: bytes, server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    (tmp_path / CONTENT_KEPT).write_bytes(kept)
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.asked[-1] == (None, None)
    assert server.sent[-1] == len(CONTENT)
    assert left_in(tmp_path) == {NAME}


@pytest.mark.parametrize("mark", [b"", b"\0\0", b'"a"\nHost: b', b"\xff"])
def test_a_mark_that_cannot_be_sent_is_none(mark: bytes, server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    (tmp_path / PARTIAL / "mark").write_bytes(mark)
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert server.asked[1:] == [(None, None)]


def test_a_whole_file_that_was_not_yet_moved_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    (tmp_path / CONTENT_KEPT).write_bytes(CONTENT)
    (tmp_path / PARTIAL / "stray").write_bytes(b"of a killed process")
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert left_in(tmp_path) == {NAME}


def test_only_the_rest_needs_room(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off(server, tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=len(CONTENT) - HALF - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(f"{NAME} takes 72 KiB, but {tmp_path} has 72 KiB left", tmp_path, server.url, kept=CONTENT[:HALF])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(CONTENT) - HALF))
    assert fetch("toy", FILE, tmp_path, server.url).read_bytes() == CONTENT


def test_four_processes_at_once_go_on_once(server: Server, tmp_path: Path) -> None:
    broken_off(server, tmp_path)
    four_at_once(server, tmp_path, 2)
    assert server.sent == [HALF + 1, len(CONTENT) - HALF]
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_truncated_download_is_refused(server: Server, tmp_path: Path) -> None:
    server.promised[NAME] = 2 * len(CONTENT)
    refused(f"{server.url}/{NAME} broke off", tmp_path, server.url)


def test_another_file_of_that_name_is_refused(server: Server, tmp_path: Path) -> None:
    server.files[NAME] = CONTENT[:-1] + b"x"
    refused(f"{server.url}/{NAME} is not the published file: its hash differs", tmp_path, server.url)


def test_a_server_without_the_file_is_named(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    refused(f"{server.url}/{NAME} cannot be had (404", tmp_path, server.url)


def test_a_server_that_is_down_is_named(server: Server, tmp_path: Path) -> None:
    refused(f"http://127.0.0.1:9/nowhere/{NAME} cannot be had (", tmp_path, None)
    assert server.requests == []


def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    refused("not-an-address/images.gz cannot be had (", tmp_path, "not-an-address")


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

    def fill(self: object, url: str, output_file: BinaryIO, pooch: object) -> None:
        output_file.write(CONTENT[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    broken_off(server, tmp_path)
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
