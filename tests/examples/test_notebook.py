"""The notebook of a first run works, cell by cell, and is kept without output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        assert not cell["outputs"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:3]] == ["1", "2", "3"]
    assert any(line.startswith("never") for line in printed)
    assert "WAIT" in {line.strip() for line in printed}
    [folder] = (tmp_path / "outputs").iterdir()
    assert names["run"].path.resolve() == folder  # type: ignore[attr-defined]
