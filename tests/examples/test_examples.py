"""Examples of growing networks are short, and each ends with a line for every controller."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run
from tests.warm import WarmPython

ROOT = Path(__file__).parents[2]
MOST_LINES = 60
CONTROLLERS = {
    "resnet": ("never", "heuristic", "digits_pays"),
    "gpt": ("never", "heuristic", "schedule"),
    "mlp": ("never", "heuristic", "schedule"),
    "lightning": ("never", "heuristic", "digits_pays"),
    "trainer": ("never", "heuristic", "schedule"),
    "own_controller": ("never", "heuristic", "careful"),
}
LINE = re.compile(
    r"(\w+): \d+\.\d % of test \w+ \([+-]\d+\.\d\), kept [\w ,.]+, (\d+) weights: "
    r"(the base|growing paid|growing did not pay)"
)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLLERS)
def test_an_example_says_what_came_out_for_each_controller(name: str, warm_python: WarmPython) -> None:
    done = run([warm_python.executable, "-m", f"examples.{name}"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert [line and line[1] for line in found] == list(CONTROLLERS[name])
    never, *others = (line for line in found if line)
    assert (never[2], never[3]) == ("0", "the base")
    assert all(line[3] == "growing did not pay" for line in others if line[2] == "0")
