"""The provenance of a shipped controller is that of its run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import SMALL

from esper.config import compose
from esper.experiment.checkpoint import load_checkpoint
from esper.experiment.shipped import ship
from esper.runtime.run_folder import RunFolder
from esper.training.run import train
from experiments.ship import MEASURES, origin

TINY = (
    *SMALL,
    "env.mapping=loop",
    "env.num_epochs=3",
    "evaluation.num_hosts=2",
    "evaluation.controllers=[learned,never]",
    "instances.num_train=2",
    "instances.num_held_out=2",
    "trainer.num_iterations=1",
    "telemetry.plots=false",
)


@pytest.mark.slow
def test_the_origin_of_a_run_is_its_command_commit_seed_date_and_closing_table(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match=r"has no result.json: ship a finished run"):
        origin(run, TINY)
    train(compose(*TINY, "seed=5"), run)
    with pytest.raises(ValueError, match=r"was not started with .*: it has seed=5, not 6"):
        origin(run, [*TINY, "seed=6"])
    told = origin(run, [*TINY, "seed=5"])
    assert told["command"] == f"python -m esper.train {' '.join(TINY)} seed=5"
    assert told["seed"] == 5
    assert told["date"].count("-") == 2
    assert set(told["evaluation"]) == {"learned", "never"}
    assert set(told["evaluation"]["never"]) == set(MEASURES)
    path = ship(RunFolder(run).last_checkpoint, "mine", told, tmp_path)
    assert load_checkpoint(path)["origin"] == {"iteration": 1, **told}
