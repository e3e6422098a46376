"""Only the appended part of a growing file is read, and a replaced file is read from its start."""

from __future__ import annotations

from pathlib import Path

from esper.watch.follow import Follower


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    follower = Follower(path)
    assert follower.read().lines == []  # not there yet
    append(path, "a\nb\n")
    assert follower.read() == ([b"a", b"b"], False, False)
    assert follower.read().lines == []
    append(path, "c\n")
    assert follower.read().lines == [b"c"]
    assert follower.bytes_read == 6


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    follower = Follower(path)
    append(path, "a\nhal")
    assert follower.read().lines == [b"a"]
    append(path, "f")
    assert follower.read().lines == []
    append(path, "\nb\n")
    assert follower.read().lines == [b"half", b"b"]


def test_a_file_that_was_cut_back_or_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    follower = Follower(path)
    append(path, "a\nb\nhal")
    follower.read()
    path.write_text("a\n")
    assert follower.read() == ([b"a"], True, False)
    other = tmp_path / "other"
    other.write_text("x\ny\nz\n")  # longer than what was read
    other.replace(path)
    assert follower.read() == ([b"x", b"y", b"z"], True, False)


def test_of_a_long_file_the_end_is_read_first_without_its_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    follower = Follower(path, tail_bytes=20)
    assert follower.read() == ([b"line 998", b"line 999"], False, True)
    assert follower.bytes_read == 20
    append(path, "more\n")
    assert follower.read() == ([b"more"], False, False)
