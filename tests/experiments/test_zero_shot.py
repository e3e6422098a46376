"""The study of hosts of other kinds plays the same hosts with everyone, whatever their number of slots."""

from __future__ import annotations

import pytest
from helpers import undone

with undone():  # tests of the registry are about Esper's own
    from experiments.zero_shot.reproduce import HEAD, KINDS, RIVALS, Kind, played, row

FEW = ("env.num_epochs=14", "env.steps_per_epoch=1", "task.batch_size=16")


def test_a_row_compares_the_same_hosts() -> None:
    scores = {"learned": 3.0, "schedule": 2.0, "one_bit": 3.5, "heuristic": 1.0, "never": 0.0}
    found = {
        name: {"returns": [value, value + 10.0], "test": [0.5, 0.6], "kept": [1, 0]} for name, value in scores.items()
    }
    line = row(KINDS["deep"], {**found, "families": ["intact", "intact"]})
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == len(HEAD)
    assert cells[0] == KINDS["deep"].text
    assert [cell.split()[0] for cell in cells[1:5]] == ["+8.0", "+1.0", "-0.5", "+2.0"]
    assert cells[2:5] == [f"{gap} [{gap}, {gap}]" for gap in ("+1.0", "-0.5", "+2.0")], "hosts differ, pairs do not"
    assert cells[5:] == ["55.0", "55.0", "0.50"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["same", "deep"])
def test_everyone_plays_the_same_hosts_and_never_earns_nothing(name: str) -> None:
    found = played(Kind("few", (*KINDS[name].words, *FEW)), num_hosts=3)
    assert set(found) == {"learned", *RIVALS, "never", "families"}
    assert {len(found[who]["returns"]) for who in ("learned", *RIVALS, "never")} == {len(found["families"])} == {3}
    assert found["never"]["returns"] == [0.0] * 3
    assert found["never"]["kept"] == [0] * 3
    assert sum(found["learned"]["kept"]) > 0
