"""The study of controllers that begin as the bandit says what each run earns on both kinds of hosts, and by price."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers import undone

with undone():  # tests of the registry are about Esper's own
    from experiments.digits_mixed import reproduce


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def folder(path: Path, rows: Sequence[tuple[str, int, float, float]]) -> Path:
    """Make the folder of an evaluation with controller, run, price and return of each host."""
    path.mkdir()
    lines = ["controller,run,rent_weight,episode_return", *(",".join(map(str, row)) for row in rows)]
    (path / "hosts.csv").write_text("\n".join(lines) + "\n")
    return path


def test_returns_stand_by_run_seed_on_both_kinds_of_hosts_and_by_price(tmp_path: Path) -> None:
    worth = {(0, 8.0): 4.0, (0, 24.0): -2.0, (1, 8.0): 6.0, (1, 24.0): 0.0}
    learned = [("learned", run, rent, value) for (run, rent), value in worth.items() for _ in range(2)]
    rivals = [(name, 0, rent, 1.5) for name in reproduce.ON_TRAINING_HOSTS for rent in (8.0, 8.0, 24.0, 24.0)]
    held_out = folder(tmp_path / "held_out", [*learned, *rivals, ("never", 0, 8.0, 0.0)])
    training = folder(
        tmp_path / "training", [(name, run, rent, 5.0 + run) for name, run, rent, _ in [*learned, *rivals]]
    )
    table = reproduce.by_seed(held_out, training, runs=2).splitlines()
    assert cells(table[0]) == ["controller", "training hosts", "held-out hosts", "rent 8", "rent 24"]
    found = [[cells(line)[0], *(cell.split()[0] for cell in cells(line)[1:])] for line in table[2:]]
    assert found == [
        ["learned, run seed 0", "+5.0", "+1.0", "+4.0", "-2.0"],
        ["learned, run seed 1", "+6.0", "+3.0", "+6.0", "+0.0"],
        *([name, "+5.0", "+1.5", "+1.5", "+1.5"] for name in reproduce.ON_TRAINING_HOSTS),
    ]
