"""Longer training beside a study: the same held-out hosts, paired by their numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from esper.config import compose
from esper.runtime.run_folder import RunFolder
from experiments.jobs import Job
from experiments.training_time import reproduce as longer
from experiments.training_time.reproduce import CHECKPOINT_EVERY, LOOKS, NUM_ITERATIONS, Scores

HEAD = "controller,run,instance,family,episode_return,test_accuracy,added_parameters"


def test_the_long_runs_can_start_and_keep_what_is_judged() -> None:
    config = compose(*longer.job(0).words)
    assert config.trainer.num_iterations == LOOKS[-1] == NUM_ITERATIONS
    assert not any(look % CHECKPOINT_EVERY for look in LOOKS)


def test_hosts_are_in_the_order_of_their_numbers_whatever_that_of_the_rows(tmp_path: Path) -> None:
    rows = ["learned,1,3,b,4,0,0", "learned,0,10,a,2,0,0", "never,0,10,a,0,0,0", "learned,1,10,a,3,0,0"]
    rows += ["learned,0,3,b,1,0,0", "never,0,3,b,0,0,0"]
    (tmp_path / "hosts.csv").write_text("\n".join([HEAD, *rows, ""]))
    scores = longer.read_scores(tmp_path / "hosts.csv")
    assert scores["learned"].families == scores["never"].families == ("b", "a")
    assert scores["learned"].columns["episode_return"].tolist() == [[1, 2], [4, 3]]
    assert scores["never"].columns["episode_return"].shape == (1, 2)


@pytest.mark.parametrize(("family", "accuracy"), [("b", 0.5), ("a", 0.56)])
def test_other_hosts_are_refused(family: str, accuracy: float) -> None:
    def scores(family: str, accuracy: float) -> Scores:
        return Scores(families=(family,), columns={"test_accuracy": torch.tensor([[accuracy]])})

    longer.check_same_hosts(scores("a", 0.51), scores("a", 0.5))
    with pytest.raises(ValueError, match="not those of growth_pays"):
        longer.check_same_hosts(scores(family, accuracy), scores("a", 0.5))


def test_each_length_is_judged_at_its_checkpoints_and_beside_the_short_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs and evaluations are feigned: after iteration n, run seed s earns n + s points."""
    monkeypatch.chdir(tmp_path)
    rivals = (*longer.RIVALS, longer.ACCURATE, "never")

    def hosts(folder: Path, learned: Sequence[float]) -> None:
        rows = [f"{name},0,{host},a,0,0.5,0" for name in rivals for host in range(2)]
        rows += [f"learned,{run},{host},a,{points},0.6,0" for run, points in enumerate(learned) for host in range(2)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.csv").write_text("\n".join([HEAD, *rows, ""]))

    def make(jobs: Sequence[Job], at_once: int) -> None:
        for one in jobs:
            one.folder.mkdir(parents=True)
            (one.folder / "result.json").write_text(json.dumps({"git_sha": "0123456789"}))
            records = (
                {
                    "iteration": number,
                    "charts/env_epochs": 60 * number,
                    "charts/SPS": 1.0,
                    "charts/episodic_return": 0.0,
                    "losses/explained_variance": None,
                }
                for number in range(1, NUM_ITERATIONS + 1)
            )
            (one.folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def evaluate(folder: Path, checkpoints: Sequence[Path], *words: str) -> Path:
        look = int(folder.name.rpartition("-")[2])
        assert checkpoints == [RunFolder(longer.job(seed).folder).kept_checkpoint(look) for seed in longer.SEEDS]
        hosts(folder, [look + seed for seed in longer.SEEDS])
        return folder

    monkeypatch.setattr(longer, "make", make)
    monkeypatch.setattr(longer, "evaluate", evaluate)
    hosts(longer.STUDY.page.parent, [1.0, 2.0, 3.0])
    times = "\n".join(f"{run},{longer.NUM_SHORT},1200" for run in range(3))
    (longer.STUDY.page.parent / "curves.csv").write_text(f"run,iteration,seconds\n{times}\n")
    longer.PAGE.parent.mkdir(parents=True)
    longer.PAGE.write_text("\n".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->" for name in ("commit", "table")))
    longer.main()
    rows = [line.split(" | ")[:4] for line in longer.PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows == [
        ["| 80", "80", "20", "1.0, 2.0, 3.0"],
        *([f"| {look}", f"{NUM_ITERATIONS}", f"{look / 4:.0f}", f"{look}.0, {look + 1}.0"] for look in LOOKS),
    ]
    episodes = longer.PAGE.with_name("hosts.csv").read_text().splitlines()
    assert len(episodes) == 1 + len(LOOKS) * len(longer.SEEDS) * 2
    assert {"curve.png", "curves.csv"} <= {path.name for path in longer.PAGE.parent.iterdir()}
