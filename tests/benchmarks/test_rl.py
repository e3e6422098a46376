"""The comparison of learners is made in parts, and its table is of the runs that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rl import COLUMNS, NAMES, main, table


def made_up(learner: str, seed: int, level: float, illegal: int) -> dict[str, Any]:
    """A run of 30 rollouts whose returns rise to a level, twice as fast for Esper's learner."""
    return {
        **{"preset": "digits", "learner": learner, "seed": seed, "steps": 18_000, "chosen": 200, "illegal": illegal},
        "cpu_seconds": 180.0 if learner == "esper" else 200.0,
        "curve": [level * number / 30 for number in range(1, 31)],
        "returns": [level + seed, level + seed + 0.5, level + seed + 1.0],
        "families": ["intact", "intact", "starved_2"],
        "machine": {"cpu": "a CPU", "torch": "2", "commit": "0123456789abcdef"},
    }


def test_the_table_compares_runs_of_the_same_seed() -> None:
    runs = [made_up("esper", seed, 3.0, 0) for seed in range(3)] + [made_up("flat", seed, 4.0, 50) for seed in range(2)]
    lines = table(runs)
    own, flat = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4])
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(COLUMNS)
    assert own[:4] == ["digits", "18,000", NAMES["esper"], "3"]
    assert flat[3] == "2"
    assert float(own[4].split()[0]) == 4.5
    assert flat[5].startswith("-1.00 [")
    assert (own[6], own[7]) == ("0.90", "2.90")
    assert (own[8], flat[8], flat[9]) == ("100", "90", "0.90")
    assert (own[10], flat[10]) == ("0 %", "25 %")
    assert lines[-1] == "a CPU · torch 2 · commit 0123456789ab"


def test_runs_of_another_length_are_compared_with_one_another_only() -> None:
    runs = [made_up("esper", 0, 3.0, 0), made_up("flat", 0, 4.0, 0)]
    shorter = [{**made_up(run["learner"], 0, 1.0, 0), "steps": 6_000} for run in runs]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table([*runs, *shorter])[2:6]]
    assert [row[1] for row in rows] == ["6,000", "6,000", "18,000", "18,000"]
    assert [row[5].split()[0] for row in rows if row[5]] == ["+0.00", "-1.00"]


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--iterations", "0"], ["--iterations", "-3"]])
def test_numbers_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"{words[0]} {words[1]} must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_finished_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--seeds", "1", "--out", str(tmp_path)])
    found = {path: path.read_text() for path in tmp_path.glob("*.json")}
    runs = {run["learner"]: run for run in map(json.loads, found.values())}
    assert set(runs) == set(NAMES)
    assert len({tuple(run["families"]) for run in runs.values()}) == 1
    assert {len(run["returns"]) for run in runs.values()} == {4}
    assert len({run["steps"] for run in runs.values()}) == 1
    assert runs["flat"]["illegal"] == runs["esper"]["illegal"] == 0 < runs["factored"]["illegal"]
    first = capsys.readouterr().out
    [gone, *kept] = sorted(found)
    gone.unlink()
    main(["--quick", "--seeds", "1", "--out", str(tmp_path)])
    again = capsys.readouterr().out
    assert [again.count(str(path)) for path in (gone, *kept)] == [1, 0, 0]
    assert json.loads(gone.read_text())["returns"] == json.loads(found[gone])["returns"]
    assert first.splitlines()[-5].split("|")[5] == again.splitlines()[-5].split("|")[5]
