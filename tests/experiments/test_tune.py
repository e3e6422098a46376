"""The Optuna study suggests, prunes, reports and resumes, with runs that only write numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna", reason="needs pip install '.[tune]'")

from experiments.tune import study as tune_study  # noqa: E402
from experiments.tune.study import report, returns, train, tune, value  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore::ResourceWarning")

RUN = """
import json, sys, time
from pathlib import Path
folder, curve, end = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
folder.mkdir(parents=True, exist_ok=True)
path = folder / "metrics.jsonl"
done = len(path.read_text().splitlines()) if path.exists() else 0
with path.open("a") as file:
    for step, value in enumerate(curve[done:], start=done + 1):
        file.write(json.dumps({"iteration": step, "charts/episodic_return": value}) + "\\n")
        file.flush()
if end == "wait":
    time.sleep(600)
sys.exit(int(end == "fail"))
"""


class Runs:
    """Commands of runs that write a curve, and then end, fail, or run forever."""

    def __init__(self) -> None:
        self.started: list[tuple[str, tuple[str, ...]]] = []
        self.curve: list[float | None] = [0.0, 1.0, 2.0]
        self.end = "end"

    def __call__(self, folder: Path, words: Sequence[str]) -> list[str]:
        self.started.append((folder.name, tuple(words)))
        return [sys.executable, "-c", RUN, str(folder), json.dumps(self.curve), self.end]


@pytest.mark.slow
def test_trials_are_told_the_mean_of_their_last_iterations_and_the_best_is_reported(tmp_path: Path) -> None:
    runs = Runs()
    study = tune(tmp_path, runs, trials=3, seed=0, poll_seconds=0.01)
    assert [trial.value for trial in study.trials] == [1.0] * 3
    assert [name for name, _ in runs.started] == ["trial-000", "trial-001", "trial-002"]
    assert len({words for _, words in runs.started}) == 3
    assert "trials: 3 complete" in report(study)
    assert "best: trial 0, mean return of its last iterations +1.00: ppo.lr=" in report(study)


def test_the_same_command_goes_on_until_there_are_enough_and_proposes_something_else(tmp_path: Path) -> None:
    runs = Runs()
    tune(tmp_path, runs, trials=2, seed=0, poll_seconds=0.01)
    study = tune(tmp_path, runs, trials=4, seed=0, poll_seconds=0.01)
    assert len(study.trials) == len(runs.started) == len({words for _, words in runs.started}) == 4
    tune(tmp_path, runs, trials=4, seed=0, poll_seconds=0.01)
    assert len(runs.started) == 4


def test_an_interrupted_trial_goes_on_with_its_own_words_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    runs.end = "wait"

    def interrupt(_: float) -> None:
        if len(returns(tmp_path / "trial-000")) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tune_study.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune(tmp_path, runs, trials=2, seed=0)
    runs.end, runs.curve = "end", [0.0, 1.0, 2.0, 3.0]
    study = tune(tmp_path, runs, trials=2, seed=0, poll_seconds=0.01)
    assert runs.started[0] == runs.started[1]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    assert study.trials[0].value == 1.5


def test_a_trial_below_the_median_is_pruned_and_its_run_is_ended(tmp_path: Path) -> None:
    runs = Runs()
    runs.curve = [1.0] * 8
    tune(tmp_path, runs, trials=tune_study.STARTUP_TRIALS, seed=0, poll_seconds=0.01)
    runs.curve, runs.end = [0.0] * 8, "wait"
    study = tune(tmp_path, runs, trials=tune_study.STARTUP_TRIALS + 1, seed=0, poll_seconds=0.01)
    assert study.trials[-1].state.name == "PRUNED"


def test_a_run_that_fails_is_a_failed_trial_and_the_study_goes_on(tmp_path: Path) -> None:
    runs = Runs()
    runs.end = "fail"
    study = tune(tmp_path, runs, trials=2, seed=0, poll_seconds=0.01)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL"]
    assert report(study) == "trials: 2 fail"


def test_values_are_means_of_what_was_measured(tmp_path: Path) -> None:
    lines = [json.dumps({"iteration": i, "charts/episodic_return": None if i == 2 else float(i)}) for i in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert value(returns(tmp_path)) == 6.0


def test_the_words_of_a_trial_compose(tmp_path: Path) -> None:
    from esper.config import compose

    runs = Runs()
    tune(tmp_path, runs, trials=1, seed=0, poll_seconds=0.01)
    command = train(["+preset=smoke"])(tmp_path / "run", runs.started[0][1])
    words = [word for word in command[3:] if not word.startswith("hydra.")]
    assert compose(*words).resume == "auto"
