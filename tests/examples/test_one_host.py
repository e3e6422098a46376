"""The example of one's own network is short and grows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_host.py"
MOST_LINES = 15


def test_one_network_grows_in_fifteen_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    code = [line for line in text.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= MOST_LINES
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(text.replace("25", "6"), EXAMPLE, "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == [f"epoch {epoch}/6" for epoch in range(1, 7)]
    assert names["network"] is names["net"]
