"""Child processes of tests have enough time to end on a busy machine, and end with the test."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from processes import LIMIT, run, started, together, wait_for

TESTS = Path(__file__).parent

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@linux
@pytest.mark.parametrize("fails", [False, True])
def test_whatever_a_child_has_started_ends_with_the_block_in_whatever_session_it_is(fails: bool) -> None:
    script = "setsid sleep 1000 & echo $!; (setsid sleep 1000 & echo $!); exec sleep 1000"
    pids = []

    def block() -> None:
        with started(["sh", "-c", script], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            pids.extend([child.pid, int(child.stdout.readline()), int(child.stdout.readline())])
            assert all(map(alive, pids))
            assert not fails

    if fails:
        with pytest.raises(AssertionError):
            block()
    else:
        block()
    wait_for(lambda: not any(map(alive, pids)))


def test_processes_that_have_not_ended_are_killed_however_the_block_ends() -> None:
    processes = [get_context("spawn").Process(target=time.sleep, args=(1000,)) for _ in range(2)]

    def block() -> None:
        with together(processes):
            assert not all(process.is_alive() for process in processes)

    with pytest.raises(AssertionError):
        block()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 2


def test_what_is_awaited_of_a_process_that_has_ended_is_not_awaited_for_long() -> None:
    with started(["sh", "-c", "exit 3"]) as child, pytest.raises(AssertionError, match="has ended with code 3"):
        wait_for(lambda: False, child)


def test_a_child_tells_what_it_printed_and_how_it_ended() -> None:
    done = run(["sh", "-c", "echo said; echo complained >&2; exit 4"])
    assert (done.returncode, done.stdout, done.stderr) == (4, "said\n", "complained\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(["sh", "-c", "exit 4"], check=True)


# ------------------------------------------------------------------------------------------------ the tests themselves


WAITS = {"wait", "join", "communicate", "wait_for"}
"""Functions that take a number of seconds as the only thing; others call it ``timeout``."""

CLOCKS = ("monotonic()", "perf_counter()")

CHILDREN = ("processes.py", "attacks/tools.py")
"""Files that start children: the helper, and programs that are such children themselves."""

STARTS = {f"subprocess.{name}" for name in ("run", "Popen", "check_call", "check_output", "call", "getoutput")}


def short_waits(source: str) -> Iterator[tuple[int, str]]:
    """Lines that give less than ten minutes to something that only has to end or happen, or find it too slow."""
    tree = ast.parse(source)
    constants = {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }

    def is_short(node: ast.expr) -> bool:
        value = constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LIMIT

    negated = {
        node.operand for node in ast.walk(tree) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    }
    for node in ast.walk(tree):
        given: list[ast.expr] = []
        if node in negated:
            continue  # what must not happen is waited for in vain
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            if name in WAITS and len(node.args) == 1:
                given += node.args
        elif isinstance(node, ast.BinOp) and ast.unparse(node.left).endswith(CLOCKS):
            given = [node.right]
        elif isinstance(node, ast.Compare) and any(clock in ast.unparse(node.left) for clock in CLOCKS):
            given = node.comparators
        if any(map(is_short, given)):
            yield node.lineno, ast.unparse(node)


def own_children(source: str) -> Iterator[tuple[int, str]]:
    """Lines that start a child without the help of ``processes``."""
    for node in ast.walk(ast.parse(source)):
        starts = set()
        if isinstance(node, ast.Call):
            starts = {ast.unparse(node.func)}
        elif isinstance(node, ast.ImportFrom):
            starts = {f"{node.module}.{alias.name}" for alias in node.names}
        if starts & STARTS:
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("process.wait(timeout=120)", True),
        ("thread.join(30)", True),
        ("LONG = 240\nprocess.communicate(timeout=LONG)", True),
        ("deadline = time.monotonic() + 60", True),
        ("assert perf_counter() - began < 0.3", True),
        ("assert not entered.wait(0.2)", False),
        ("process.wait(LIMIT)", False),
        ("process.communicate(timeout=1800)", False),
        ("', '.join(words)", False),
        ("lock.acquire(timeout=0)", False),
    ],
)
def test_short_waits_are_found(line: str, short: bool) -> None:
    assert bool(list(short_waits(line))) == short


@pytest.mark.slow
def test_tests_give_time_enough_and_leave_no_process_behind() -> None:
    """``processes.LIMIT`` is what anything gets that only has to end, ``processes.run`` and ``started`` end it."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        source, name = path.read_text(encoding="utf-8"), str(path.relative_to(TESTS))
        lines = [*short_waits(source), *(own_children(source) if name not in CHILDREN else ())]
        found += [f"{name}:{number}: {line}" for number, line in lines]
    assert found == []
