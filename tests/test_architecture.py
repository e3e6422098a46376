"""Architecture: few packages, no upward imports, files of limited length, and tests that mirror the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "esper"

ENTRY_POINTS = {"train", "evaluate", "export", "dashboard"}

MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "growth": {"runtime"},
    "tasks": {"runtime"},
    "hosts": {"growth", "runtime"},
    "blueprints": {"growth", "hosts", "runtime"},
    "population": {"runtime", "growth", "tasks", "hosts", "blueprints"},
    "envs": {"runtime", "growth", "tasks", "hosts", "blueprints", "population"},
    "telemetry": {"runtime", "growth", "blueprints", "envs"},
    "policy": {"runtime", "growth", "envs"},
    "algorithms": {"runtime", "growth", "policy", "telemetry"},
    "controllers": {"runtime", "growth", "blueprints", "population", "envs", "policy"},
    "views": {"runtime", "growth", "telemetry"},
    "config": {"runtime", "growth", "hosts", "blueprints", "envs", "telemetry"},
    "experiment": {
        *("runtime", "growth", "tasks", "hosts", "blueprints", "population", "envs", "policy", "algorithms"),
        *("controllers", "telemetry", "config"),
    },
    "grower": {
        *("runtime", "growth", "hosts", "blueprints", "population", "envs", "controllers", "config", "experiment"),
    },
    "rl": {"runtime", "growth", "blueprints", "envs", "config", "experiment"},
    "evaluation": {
        *("runtime", "growth", "tasks", "hosts", "blueprints", "envs", "policy", "controllers"),
        *("telemetry", "views", "config", "experiment"),
    },
    "exporting": {
        *("runtime", "population", "envs", "config", "experiment", "evaluation"),
    },
    "training": {
        *("runtime", "growth", "envs", "policy", "algorithms", "controllers"),
        *("telemetry", "views", "config", "experiment", "evaluation"),
    },
    "launch": {"runtime", "views", "config", "experiment"},
    "report": {"runtime", "telemetry", "views", "config", "launch"},
    "watch": {"runtime", "telemetry", "views", "launch", "report"},
    "train": {"runtime", "config", "experiment", "launch"},
    "evaluate": {"runtime", "config", "experiment", "launch", "evaluation"},
    "export": {"runtime", "config", "launch", "exporting"},
    "dashboard": {"runtime", "telemetry", "views", "launch"},
}
"""Rooms from the ground up, entry points last, and which of the rooms before it each may use."""

MOST_PACKAGES = 22
MOST_LINES = 400
MOST_FUNCTION_LINES = 65

NO_ROOMS = {"attacks", "benchmarks", "examples", "experiments", "pretend_cuda", "warm"}
"""Folders of tests that are about no single package."""


ALLOWED_OF_ALL = {"__version__"}
"""Names of the package itself that every room may import; others are those of rooms, by another way."""

BY_NAME = {"esper.launch.begin", "esper.launch.entries"}
"""Modules that start what stands above them, and say its name in a string."""

DOTTED = re.compile(r"esper\.[a-z_]+(\.\w+)*(:\w+)?")


@cache
def sources() -> dict[str, ast.Module]:
    """Syntax trees of all modules by dotted name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imported(tree: ast.Module) -> Iterator[str]:
    """Esper's modules that a module imports, at its top or in a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import hides which room it reaches"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(tree: ast.Module) -> Iterator[str]:
    """Esper's modules, and names in them, that stand in strings, from which they can be imported."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and DOTTED.fullmatch(text) and room(text) in MAY_IMPORT:
            yield text.partition(":")[0]


def room(name: str) -> str:
    """Second part of a dotted name: the package or entry point that a module is in."""
    return name.split(".")[1]


def test_rooms_are_few_and_all_have_their_place_in_the_order() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert len(packages) <= MOST_PACKAGES
    assert modules == ENTRY_POINTS, "a module at the top is an entry point"
    assert packages | modules == set(MAY_IMPORT)


def test_the_order_has_no_circle() -> None:
    before: set[str] = set()
    for name, allowed in MAY_IMPORT.items():
        assert allowed <= before, f"{name} may import {allowed - before}, which come after it"
        before.add(name)


def test_no_module_reaches_up() -> None:
    upward = [
        f"{name} imports {target}"
        for name, tree in sources().items()
        if name != "esper"
        for target in (*imported(tree), *(named(tree) if name not in BY_NAME else ()))
        if target.startswith("esper.") and room(target) not in ALLOWED_OF_ALL | MAY_IMPORT[room(name)] | {room(name)}
    ]
    assert not upward, "\n".join(upward)


def test_every_permission_is_used() -> None:
    used: dict[str, set[str]] = {name: set() for name in MAY_IMPORT}
    for name, tree in sources().items():
        if name != "esper":
            used[room(name)] |= {room(target) for target in imported(tree) if target.startswith("esper.")}
    assert {name: allowed - used[name] for name, allowed in MAY_IMPORT.items() if allowed - used[name]} == {}


def test_files_and_functions_fit_in_a_head() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count} lines"
        for path in PACKAGE.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    ]
    long += [
        f"{name}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("*/test_*.py")), ids=lambda path: path.stem)
def test_tests_lie_in_the_room_that_they_test(path: Path) -> None:
    assert path.parent.name in {*MAY_IMPORT, *NO_ROOMS}


def test_the_page_on_architecture_names_every_package_and_what_it_may_import() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", page, re.MULTILINE)
    named = {name: set(re.findall(r"\w+", allowed)) for name, allowed in rows}
    assert named == {name: allowed for name, allowed in MAY_IMPORT.items() if name not in ENTRY_POINTS}


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports files of folders that are no packages by their names alone."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if not (path.parent / "__init__.py").exists()]
    names = sorted(path.name for path in files if path.name != "conftest.py")
    assert names == sorted(set(names))
