"""Training runs of Esper's learner and of outside learners on the same hosts, judged on the same held-out hosts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.records import machine
from benchmarks.scale import experiment_of
from esper.config import compose
from esper.controllers import Learned
from esper.envs.records import EpisodeRecord
from esper.evaluation.play import RUN_SEED, play
from esper.growth.actions import OP_NAMES, OP_WAIT
from esper.rl import GrowthVecEnv, GrowthVectorEnv
from esper.runtime.rng import generator
from esper.runtime.run_folder import RunFolder
from esper.telemetry.hub import TelemetryHub
from esper.training import trainer

ESPER, FLAT, FACTORED = "esper", "flat", "factored"
LEARNERS = (ESPER, FLAT, FACTORED)
"""Esper's own PPO, and MaskablePPO on flat and on factored actions."""

GROWING = [name for number, name in enumerate(OP_NAMES) if number != OP_WAIT]


def train_and_judge(
    preset: str, learner: str, seed: int, num_hosts: int, iterations: int | None = None
) -> dict[str, Any]:
    """Train a learner, then play an episode on each held-out host.

    Args:
        preset: preset of the hosts, and of Esper's learner.
        learner: one of :data:`LEARNERS`.
        seed: run seed, of the order of hosts and of the learner.
        num_hosts: number of held-out hosts.
        iterations: length of the training, in episodes of all hosts; default: the preset's.

    Returns:
        Values for JSON. ``cpu_seconds`` are of training, without never-grown twins; ``curve`` is the mean return of the
        training episodes of each rollout; ``chosen`` counts actions other than WAIT, ``illegal`` those of them that
        were; ``returns`` and ``families`` are of the held-out hosts.
    """
    words: tuple[str, ...] = (f"seed={seed}", f"evaluation.num_hosts={num_hosts}", "telemetry.console=off")
    if iterations is not None:
        words = (*words, f"trainer.num_iterations={iterations}")
    train = _train_esper if learner == ESPER else _train_maskable
    origin = machine("cpu")
    found, records = train(preset, words, learner)
    records = sorted(records, key=lambda record: record.instance.index)
    return {
        **{"preset": preset, "learner": learner, "seed": seed, "machine": origin},
        **found,
        "returns": [record.episode_return for record in records],
        "families": [record.instance.family for record in records],
    }


def _train_esper(preset: str, words: Sequence[str], learner: str) -> tuple[dict[str, Any], Sequence[EpisodeRecord]]:
    experiment = experiment_of(preset, *words)
    config = experiment.config
    with tempfile.TemporaryDirectory() as folder, TelemetryHub([]) as hub:
        run = trainer.Trainer(experiment, RunFolder.create(Path(folder) / "run", ""), hub)
        run.begin()
        began = process_time()
        metrics = [run.iterate() or {} for _ in range(config.trainer.num_iterations)]
        seconds = process_time() - began
    chosen, successful = (
        sum(float(row[f"ops/{what}/{op}"] or 0) for row in metrics for op in GROWING)
        for what in ("attempted", "successful")
    )
    hosts = config.evaluation.num_hosts
    twins = experiment.twins(hosts, lambda done, total: None)
    env = experiment.env(range(hosts), experiment.pool("held_out", hosts), twins, run_seed=RUN_SEED, measure_test=True)
    sampling = generator("evaluation", config.seed)
    controller = Learned(
        run.policy,
        run.normaliser,
        hosts,
        generator=sampling,
        deterministic=config.evaluation.deterministic,
        greedy=config.evaluation.greedy,
    )
    found = {
        "steps": int(metrics[-1]["charts/env_epochs"] or 0),
        "cpu_seconds": seconds,
        "curve": [row["charts/episodic_return"] for row in metrics],
        "chosen": int(chosen),
        "illegal": int(chosen - successful),
    }
    return found, play(controller, env, lambda done, total: None).episodes


class _Watch(BaseCallback):
    """Returns of training episodes by rollout, and counts of actions."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[float] = []
        self.chosen = self.illegal = 0
        self._returns: list[float] = []

    def _on_step(self) -> bool:
        actions, infos = self.locals["actions"], self.locals["infos"]
        self.chosen += int((actions.reshape(len(actions), -1)[:, 0] != OP_WAIT).sum())  # WAIT is also the flat action 0
        self.illegal += sum(info["illegal"] for info in infos)
        self._returns += [info["episode"]["r"] for info in infos if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        self.curve.append(float(np.mean(self._returns)))
        self._returns = []


def _train_maskable(preset: str, words: Sequence[str], learner: str) -> tuple[dict[str, Any], Sequence[EpisodeRecord]]:
    overrides = ("env.mapping=matmul", *words)
    config = compose(f"+preset={preset}", *overrides)
    size, epochs = config.trainer.num_envs, config.env.num_epochs
    env = GrowthVecEnv(GrowthVectorEnv(size, preset=preset, overrides=overrides, actions=learner))
    env.reset()  # computes the twins
    # Default settings, but for rollouts of one episode, as Esper's are: the default is longer than the whole training.
    model = MaskablePPO("MlpPolicy", env, n_steps=epochs, seed=config.seed, device="cpu")
    watch = _Watch()
    began = process_time()
    model.learn(config.trainer.num_iterations * size * epochs, callback=watch)
    seconds = process_time() - began
    hosts = config.evaluation.num_hosts
    judge = GrowthVecEnv(GrowthVectorEnv(hosts, preset=preset, overrides=overrides, actions=learner, split="held_out"))
    judge.seed(RUN_SEED)
    observation = judge.reset()
    first: dict[int, EpisodeRecord] = {}
    for _ in range(epochs):
        masks = get_action_masks(judge)
        actions, _ = model.predict(observation, action_masks=masks, deterministic=config.evaluation.deterministic)
        observation, _, _, infos = judge.step(actions)
        for e, info in enumerate(infos):
            if "record" in info:
                first.setdefault(e, info["record"])
    found = {
        "steps": model.num_timesteps,
        "cpu_seconds": seconds,
        "curve": watch.curve,
        "chosen": watch.chosen,
        "illegal": watch.illegal,
    }
    return found, list(first.values())
