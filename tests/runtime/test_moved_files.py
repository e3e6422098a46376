"""Files are replaced completely or not at all, and by one function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from esper.runtime.files import write_csv

ROOT = Path(__file__).parents[2]
MOVES = {"rename", "renames", "move", "mkstemp", "NamedTemporaryFile"}
"""Names under which a library moves a file into its place, or makes one to be moved."""


def moves_a_file(node: ast.AST) -> bool:
    """``Path.replace`` has one argument; that of text has two, that of dataclasses has names."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "replace":
        of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        return of_os or (len(node.args) == 1 and not node.keywords)
    return node.func.attr in MOVES


def test_only_one_module_moves_files_into_their_place() -> None:
    """A download is moved by the one who fetched it, whole folders among them."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("esper", "experiments", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if any(map(moves_a_file, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found - {"esper/tasks/downloads.py"} == {"esper/runtime/files.py"}


def test_a_table_that_fails_halfway_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "rows.csv"
    write_csv(path, ["a", "b"], [[1, None], ["x,y", 2.5]])
    before = path.read_bytes()
    assert before == b'a,b\r\n1,\r\n"x,y",2.5\r\n'
    with pytest.raises(ZeroDivisionError):
        write_csv(path, ["a"], ([1 / number] for number in (1, 0)))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["rows.csv"]
