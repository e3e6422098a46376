"""The study of controllers that begin as the bandit compares the same hosts, and says so by run seed and price."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import SMALL, undone

with undone():  # tests of the registry are about Esper's own
    from experiments.digits_mixed import reproduce

from esper.config import compose
from esper.training.run import train

FEW = (*SMALL[1:], "task.max_samples=300", "instances.num_train=4", "telemetry.plots=false", "ppo.num_minibatches=1")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_returns_stand_by_run_seed_and_price(tmp_path: Path) -> None:
    worth = {(0, 8.0): 4.0, (0, 24.0): -2.0, (1, 8.0): 6.0, (1, 24.0): 0.0}
    rows = [("learned", run, "intact", rent, value) for (run, rent), value in worth.items() for _ in range(2)]
    rows.append(("never", 0, "intact", 8.0, 0.0))
    lines = ["controller,run,family,rent_weight,episode_return", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "hosts.csv").write_text("\n".join(lines) + "\n")
    table = reproduce.by_seed(tmp_path, {"learned": [[5.0, 5.0], [7.0, 7.0]], "prices": ["price 8.0"] * 2}).splitlines()
    assert cells(table[0]) == ["run seed", "training hosts", "held-out hosts", "rent 8", "rent 24"]
    found = [[cell.split()[0] for cell in cells(line)] for line in table[2:]]
    assert found == [["0", "+5.0", "+1.0", "+4.0", "-2.0"], ["1", "+7.0", "+3.0", "+6.0", "+0.0"]]


@pytest.mark.slow
def test_learned_controllers_play_the_hosts_of_their_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "HOSTS", words := ("+preset=digits_mixed", "recipe=lean", *FEW))
    run = tmp_path / "run"
    short = ("trainer.num_iterations=1", "evaluation.controllers=[never]", "evaluation.num_hosts=2")
    train(compose(*words, *short), run)
    training = reproduce.on_training_hosts([run, run])
    assert [len(returns) for returns in training["learned"]] == [4, 4]
    assert training["learned"][0] == training["learned"][1]
