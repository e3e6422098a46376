"""The benchmarks run and keep what they measured; how fast anything is, is not a test's business."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.__main__ import SECTIONS, main
from benchmarks.report import BEGIN, END

pytestmark = pytest.mark.slow

FIELDS = {"section", "workload", "hosts", "implementation", "median", "p95", "ratio", "unit", "rounds"} | {
    "ratio_grown",
    "samples",
}
MACHINE = {"cpu", "cores", "clock", "threads", "torch", "python", "commit", "changed", "date", "load"}


@pytest.fixture(scope="module")
def folder(warm_children: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one quick run of all sections, beside a README with markers."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    main(["--quick", "--out", str(folder)])
    return folder


def test_a_quick_run_leaves_well_formed_records_of_every_section(folder: Path) -> None:
    document = json.loads((folder / "results.json").read_text())
    records = document["records"]
    assert set(document["machines"]) == set(SECTIONS)
    assert all(set(machine) == MACHINE for machine in document["machines"].values())
    assert {record["section"] for record in records} == set(SECTIONS)
    for record in records:
        assert set(record) == FIELDS
        assert record["unit"] in ("ms", "bytes")
        assert record["rounds"] >= 1
        assert math.isfinite(record["median"])
        assert record["p95"] >= record["median"] * 0.999 >= 0
        assert record["ratio"] is None or record["ratio"] > 0
    keys = [tuple(record[key] for key in ("section", "workload", "hosts", "implementation")) for record in records]
    assert len(set(keys)) == len(keys), "every row can be told apart"


def test_a_floor_has_ratio_one_and_parts_add_up_to_the_iteration(folder: Path) -> None:
    records = json.loads((folder / "results.json").read_text())["records"]
    assert {record["ratio"] for record in records if record["implementation"].startswith("bare ")} >= {1.0}
    parts = {record["implementation"]: record["ratio"] for record in records if record["section"] == "iteration"}
    whole, control = parts.pop("whole iteration"), parts.pop("control plane")
    assert whole == 1.0
    assert sum(parts.values()) == pytest.approx(1.0)
    assert control == pytest.approx(1.0 - parts["host training"] - parts["validation and contributions"])


def test_memory_of_modules_is_that_of_the_live_ones_and_returns(folder: Path) -> None:
    records = [r for r in json.loads((folder / "results.json").read_text())["records"] if r["section"] == "memory"]
    assert records[0]["median"] == records[-1]["median"] == 0
    assert max(record["median"] for record in records) > 0
    assert {record["ratio"] for record in records} == {None, 1.0}


def test_the_readme_gets_one_table_line_per_record_and_keeps_its_own_words(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    records = json.loads((folder / "results.json").read_text())["records"]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| workload")]
    assert len(rows) == len(records)


def test_sections_that_were_not_run_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    before = json.loads((folder / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(before))
    main(["--quick", "memory", "--out", str(tmp_path)])
    after = json.loads((tmp_path / "results.json").read_text())
    assert list(after["machines"]) == list(SECTIONS)
    for section in SECTIONS:
        rows = [[r for r in results["records"] if r["section"] == section] for results in (before, after)]
        assert rows[0] == rows[1], "memory comes out the same, the others were not touched"
        assert section == "memory" or before["machines"][section] == after["machines"][section]


def test_a_trial_does_not_replace_kept_results(capsys: pytest.CaptureFixture[str]) -> None:
    kept = Path(__file__).parents[2] / "benchmarks" / "README.md"
    before = kept.read_bytes()
    main(["--quick", "memory"])
    assert kept.read_bytes() == before
    assert "live modules" in capsys.readouterr().out


def test_an_unknown_section_is_refused_in_one_line_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["hots"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "'hots'" in message
    assert all(section in message for section in SECTIONS)


def test_a_clock_that_would_miss_most_of_the_work_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--quick", "--clock", "cpu"])
    assert "section ranks" in capsys.readouterr().err
