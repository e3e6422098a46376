"""The countable part of plain language: docstrings exist, say what a thing does or is, and hold no riddles."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = ("esper", "benchmarks", "experiments", "examples", "tests")
QUESTIONS = re.compile(r"(What|How|Whether|Which|Where|Who|Whose|When|Why)\b")
RIDDLES = re.compile(
    r"what (came|comes|becomes|became) of|\bgo(es|ing)? on with\b|\b(told|tells?) apart\b|\bnobody's\b",
    re.IGNORECASE,
)
OF_PYTORCH = {"forward", "backward", "setup_context"}
"""Names of methods that the docstring of their class explains."""

PAGES = [
    *ROOT.glob("*.md"),
    *(page for tree in ("docs", "conf", *TREES) for page in sorted((ROOT / tree).rglob("*.md"))),
]


def definitions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Iterate over a module, its classes and functions with their dotted names, without functions inside functions."""
    yield name, node
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef):
            yield from definitions(child, f"{name}.{child.name}".lstrip("."))
        elif isinstance(child, ast.FunctionDef):
            yield f"{name}.{child.name}".lstrip("."), child


def docstrings(node: ast.AST) -> Iterator[str]:
    """Iterate over the docstring of a definition, and over those of its constants and fields."""
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.Expr) and isinstance(text := getattr(statement.value, "value", None), str):
            yield " ".join(text.split())


@pytest.fixture(scope="module")
def everything() -> list[tuple[Path, str, ast.AST]]:
    """Definitions of all files, with their paths and names."""
    paths = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]
    return [(path, name, node) for path in paths for name, node in definitions(ast.parse(path.read_text("utf-8")))]


@pytest.mark.parametrize("fault", [QUESTIONS.match, RIDDLES.search], ids=["question", "riddle"])
def test_docstrings_open_without_a_question_and_hold_no_riddle(
    everything: list[tuple[Path, str, ast.AST]], fault: Callable[[str], object]
) -> None:
    found = [
        f"{path.relative_to(ROOT)} {name}: {text[:80]}"
        for path, name, node in everything
        for text in docstrings(node)
        if fault(text)
    ]
    assert not found


def test_everything_public_has_a_docstring(everything: list[tuple[Path, str, ast.AST]]) -> None:
    """Definitions in examples and tests need none, nor do methods that a Protocol or a base class documents."""
    described = {
        name.rpartition(".")[2]
        for _, name, node in everything
        if "." in name and isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
    }
    missing = [
        f"{path.relative_to(ROOT)} {name}"
        for path, name, node in everything
        if not (path.relative_to(ROOT).parts[0] in ("examples", "tests") and (name or path.name == "__init__.py"))
        and not re.search(r"(^|\.)_", name)
        and not ast.get_docstring(node)
        and not ("." in name and name.rpartition(".")[2] in described | OF_PYTORCH)
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_hold_no_riddles(page: Path) -> None:
    assert not RIDDLES.search(page.read_text("utf-8"))
