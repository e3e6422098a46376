"""Every failure of a user's code is reported in one line, with its place."""

from __future__ import annotations

import pytest

from esper.config import Config
from esper.runtime.preemption import Preempted
from esper.runtime.user_code import is_ours, of_the_user


def run(source: str) -> str:
    with pytest.raises(ValueError, match=r"^key: cannot be read: ") as caught, of_the_user("key: cannot be read"):
        exec(compile(source, "/home/somebody/own.py", "exec"), {})
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("key: cannot be read: ")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n1 / 0", "ZeroDivisionError: division by zero (own.py:2)"),
        ("raise KeyError", "KeyError: no more is said (own.py:1)"),
        ("raise ValueError('first\\nsecond')", "ValueError: first (own.py:1)"),
        ("import json\njson.loads('{')", None),
        ("import sys\nsys.exit(3)", "it asks to exit with code 3 (own.py:2)"),
        ("raise SystemExit('bye')", "it asks to exit with code 'bye' (own.py:1)"),
    ],
)
def test_anything_that_it_raises_is_one_line_with_the_place_of_its_source(source: str, line: str | None) -> None:
    said = run(source)
    assert said == line if line is not None else said.endswith(" (own.py:2)"), said


def test_what_cannot_be_compiled_has_a_place_too() -> None:
    assert run("def f(:\n    pass").count("own.py") == 1


@pytest.mark.parametrize("error", [Preempted(15), KeyboardInterrupt()])
def test_a_request_to_end_that_comes_meanwhile_is_not_its_error(error: BaseException) -> None:
    with pytest.raises(type(error)), of_the_user("key: cannot be read"):
        raise error


def test_esper_is_not_a_user() -> None:
    assert is_ours(Config)
    assert not is_ours(run)
