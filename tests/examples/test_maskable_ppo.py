"""The example of an outside learner is short, and grows modules that pay."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from test_examples import MOST_LINES

from tests.processes import run

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(\w+): ([+-]\d+\.\d\d) points above never growing, (\d\.\d\d) modules kept, \d+\.\d % of test")


def test_it_is_short() -> None:
    assert len((ROOT / "examples" / "maskable_ppo.py").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.slow
def test_maskable_ppo_learns_to_keep_what_pays() -> None:
    done = run([sys.executable, "-m", "examples.maskable_ppo"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert [line and line[1] for line in lines] == ["random", "maskable_ppo"]
    points = [float(line[2]) for line in lines if line]
    assert points[1] > max(points[0], 0.0)
