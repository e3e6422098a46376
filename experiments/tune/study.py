"""Tune the learned controller: ``python -m experiments.tune.study --trials 30``, from the repository's root.

Optuna chooses the trials, which are stored in SQLite and pruned while they train. Each is an ordinary run in its own
folder. The same command resumes the study: first the interrupted trial, then new ones.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
from optuna.trial import Trial, TrialState

from esper.runtime.records import read_jsonl
from esper.runtime.terminal import secure
from experiments.jobs import GO_ON, QUIET

RETURN = "charts/episodic_return"
WINDOW = 5
"""Number of last iterations whose mean return is a trial's value, because single ones are noisy."""
POLL_SECONDS = 2.0
STARTUP_TRIALS = 5
"""Number of trials before any is pruned, and of iterations before a trial can be pruned."""

Command = Callable[[Path, Sequence[str]], list[str]]
"""Function from a run's folder and its own arguments to the command that runs it."""


def suggest(trial: Trial) -> list[str]:
    """Suggest the arguments of one trial: the settings to which PPO is most sensitive."""
    lr = trial.suggest_float("ppo.lr", 3e-4, 3e-3, log=True)
    ent_coef = trial.suggest_float("ppo.ent_coef", 0.003, 0.1, log=True)
    gae_lambda = trial.suggest_float("ppo.gae_lambda", 0.9, 1.0)
    update_epochs = trial.suggest_int("ppo.update_epochs", 2, 12, step=2)
    lstm_dim = trial.suggest_categorical("policy.lstm_dim", [32, 64, 128])
    return [
        f"ppo.lr={lr}",
        f"ppo.ent_coef={ent_coef}",
        f"ppo.ent_coef_final={ent_coef / 10}",
        f"ppo.gae_lambda={gae_lambda}",
        f"ppo.update_epochs={update_epochs}",
        f"policy.lstm_dim={lstm_dim}",
    ]


def train(words: Sequence[str]) -> Command:
    """Return a function that builds a trial's command from shared arguments; the command resumes a run in its
    folder.
    """

    def command(folder: Path, own: Sequence[str]) -> list[str]:
        fixed = [GO_ON, "trainer.checkpoint_every=1", "evaluation.controllers=[never]", *QUIET]
        return [sys.executable, "-m", "esper.train", *fixed, *words, *own, f"hydra.run.dir={folder}"]

    return command


def returns(folder: Path) -> list[float]:
    """Read the mean return of each iteration so far, without iterations that finished no episode."""
    path = folder / "metrics.jsonl"
    records = read_jsonl(path) if path.exists() else []
    return [record[RETURN] for record in records if record[RETURN] is not None]


def value(curve: Sequence[float]) -> float:
    """Return the mean of the last iterations."""
    last = curve[-WINDOW:]
    return sum(last) / len(last)


def run_trial(study: optuna.Study, trial: Trial, folder: Path, command: Command, poll_seconds: float) -> None:
    """Run one trial until it ends or is pruned, and report its value to the study."""
    words = suggest(trial)
    reported = len(study.trials[trial.number].intermediate_values)
    process = subprocess.Popen(command(folder, words))
    pruned = False
    try:
        while process.poll() is None:
            time.sleep(poll_seconds)
            curve = returns(folder)
            for step in range(reported, len(curve)):
                trial.report(value(curve[: step + 1]), step)
            reported = max(reported, len(curve))
            if reported and trial.should_prune():
                pruned = True
                break
    finally:
        # Also when this process is asked to end: the run writes a checkpoint and resumes next time.
        if process.poll() is None:
            process.terminate()
        process.wait()
    curve = returns(folder)
    if pruned:
        study.tell(trial, state=TrialState.PRUNED)
    elif process.returncode == 0 and curve:
        study.tell(trial, value(curve))
    else:
        study.tell(trial, state=TrialState.FAIL)


def tune(root: Path, command: Command, *, trials: int, seed: int, poll_seconds: float = POLL_SECONDS) -> optuna.Study:
    """Run trials until the study has a given number of ended ones, resuming an existing study.

    Args:
        root: folder of the study: ``study.db``, and a run folder per trial.
        command: command of one run.
        trials: total number of trials.
        seed: seed of the sampler.
        poll_seconds: seconds between two looks at a run.
    """
    root.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{root / 'study.db'}"
    before = optuna.study.get_all_study_summaries(storage)
    done = before[0].n_trials if before else 0
    study = optuna.create_study(
        study_name="esper",
        storage=storage,
        direction="maximize",
        # With the same seed, a resumed study would propose the same trials again.
        sampler=optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=STARTUP_TRIALS),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=STARTUP_TRIALS),
        load_if_exists=True,
    )
    for left in study.get_trials(states=(TrialState.RUNNING,)):
        trial = Trial(study, left._trial_id)
        run_trial(study, trial, root / f"trial-{trial.number:03d}", command, poll_seconds)
    while len(study.trials) < trials:
        trial = study.ask()
        run_trial(study, trial, root / f"trial-{trial.number:03d}", command, poll_seconds)
    return study


def report(study: optuna.Study) -> str:
    """Summarise how the trials ended, with the best one as arguments for the command line."""
    counts = {state.name.lower(): sum(trial.state is state for trial in study.trials) for state in TrialState}
    lines = ["trials: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)]
    if counts["complete"]:
        best = study.best_trial
        words = " ".join(f"{key}={found}" for key, found in best.params.items())
        lines.append(f"best: trial {best.number}, mean return of its last iterations {best.value:+.2f}: {words}")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, resume the study and print its summary."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tune.study", description=__doc__)
    parser.add_argument("--trials", type=int, default=30, help="trials in all (default 30)")
    parser.add_argument("--folder", type=Path, default=Path("outputs/tune"), help="of the study (default outputs/tune)")
    parser.add_argument("--seed", type=int, default=0, help="RNG seed of the sampler (default 0)")
    parser.add_argument("words", nargs="*", default=["+preset=digits"], help="of every run (default +preset=digits)")
    arguments = parser.parse_args()
    if arguments.trials < 1:
        parser.error(f"--trials must be at least 1, got {arguments.trials}")
    study = tune(arguments.folder, train(arguments.words), trials=arguments.trials, seed=arguments.seed)
    print(report(study))


if __name__ == "__main__":
    secure()
    main()
