"""Figures are drawn whatever backend the environment names."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from processes import run

import esper
from tests.tiers import slowly

ROOT = Path(esper.__file__).parents[1]
DRAWS = """
import os, sys
from esper.views.drawing import Figure
figure = Figure()
figure.subplots().plot([0, 1])
figure.savefig(sys.argv[1], format="png")
import matplotlib
assert "matplotlib.pyplot" not in sys.modules
print(os.environ["MPLBACKEND"], matplotlib.rcParams._get("backend"))
"""


def imported(path: Path) -> set[str]:
    """Modules that a file imports by name."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_one_module_imports_matplotlib_and_none_its_global_state() -> None:
    files = [path for folder in ("esper", "experiments", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    importing = {path.name for path in files if any(name.startswith("matplotlib") for name in imported(path))}
    assert importing == {"drawing.py"}
    assert not any("pyplot" in name for name in imported(ROOT / "esper" / "views" / "drawing.py"))


@pytest.mark.parametrize(
    ("named", "kept"),
    [("module://not_installed", "module://not_installed"), slowly("bogus", None), slowly("svg", "svg")],
)
def test_a_backend_that_is_named_is_not_needed_and_stays_that_of_others(
    tmp_path: Path, named: str, kept: str | None
) -> None:
    picture = tmp_path / "figure.png"
    environment = os.environ | {"MPLBACKEND": named, "PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-c", DRAWS, str(picture)], env=environment)
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 1000
    assert done.stdout.split()[0] == named
    assert kept is None or done.stdout.split()[1] == kept
