"""No failure of a terminal, a pipe or a log ends the work, and all output is shown literally."""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

import esper
from esper.runtime.terminal import console, reaches_somebody, say, secure
from tests.tiers import few

ROOT = Path(esper.__file__).parent
SHOWN = "±0.5 − █▁…─ é 木 \udc80 [x] :smile: /"


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def read_only() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def full_pipe_that_does_not_block() -> int:
    """Nobody reads it for a while; then what is in it, and it is closed."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b" " * 4096)
        except BlockingIOError:
            break
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1 << 16)
        os._exit(0)
    os.close(reader)
    return writer


def say_all() -> None:
    """Print everything that a run prints, in every way."""
    secure()
    table = Table(title=SHOWN)
    table.add_column("±")
    table.add_row(SHOWN)
    for _ in range(40):
        say(SHOWN)
        say(SHOWN, stderr=True)
        console().print(table)
        print(SHOWN, flush=True)
        sys.stderr.write(SHOWN)
    sys.stdout.flush()
    os.write(1, b"of a child")
    with open(os.devnull, "rb") as file:
        assert file.fileno() > 2, "no file of the run gets the descriptor of a stream"


def code_of(work: Callable[[], None], descriptor: int | None, encoding: str = "utf-8") -> int:
    """Exit code of a process in whose place of output and error there is a descriptor, or none."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in (1, 2):
                os.close(number) if descriptor is None else os.dup2(descriptor, number)
            for name, number in (("stdout", 1), ("stderr", 2)):
                stream = None if descriptor is None else io.TextIOWrapper(io.FileIO(number, "w"), encoding, "strict")
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            work()
            code = 0
        finally:
            os._exit(code)
    if descriptor is not None:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize(
    "target", [broken_pipe, full_disk, read_only, full_pipe_that_does_not_block, None], ids=lambda made: str(made)[:20]
)
@few(6)
def test_whatever_is_behind_them_output_and_error_take_everything(
    target: Callable[[], int] | None, encoding: str
) -> None:
    assert code_of(say_all, target() if target else None, encoding) == 0


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "±0.5 − █▁…─ é 木 ? [x] :smile: /"),
        ("latin-1", "±0.5 - #_...- é ? ? [x] :smile: /"),
        ("ascii", "+-0.5 - #_...- ? ? ? [x] :smile: /"),
    ],
)
def test_what_a_terminal_cannot_show_is_shown_by_what_it_can(tmp_path: Path, encoding: str, shown: str) -> None:
    def once() -> None:
        secure()
        say(SHOWN)

    path = tmp_path / "said"
    assert code_of(once, os.open(path, os.O_WRONLY | os.O_CREAT), encoding) == 0
    assert path.read_text(encoding=encoding) == f"{shown}\n"


def test_whoever_shows_something_for_ever_learns_that_nobody_is_there() -> None:
    def work() -> None:
        secure()
        assert reaches_somebody()
        say("first")
        assert not reaches_somebody()

    assert code_of(work, broken_pipe()) == 0


def test_streams_that_somebody_put_in_their_place_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = io.StringIO()
    monkeypatch.setattr(sys, "stdout", own)
    secure()
    assert sys.stdout is own


def test_no_module_says_anything_by_itself() -> None:
    """Other ways of printing would interpret markup in paths, and end the work on a closed pipe."""
    speaking = {path.name for path in ROOT.rglob("*.py") if called(path) & {"print", "Console"}}
    assert speaking == {"terminal.py"}


def called(path: Path) -> set[str]:
    """Names of functions that a file calls."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}
