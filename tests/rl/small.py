"""Growing hosts of a few milliseconds per epoch for outside learners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esper.config import compose
from esper.envs.growth import GrowthEnv
from esper.experiment.build import build_experiment
from esper.rl import GrowthVectorEnv

NUM_ENVS, NUM_EPOCHS = 3, 10
OVERRIDES = (
    *("env.mapping=matmul", f"env.num_epochs={NUM_EPOCHS}", "env.steps_per_epoch=1", "task.batch_size=16"),
    *("slots.min_training_epochs=1", "slots.min_cull_age=1"),
)


def vector_env(actions: str = "flat", num_envs: int = NUM_ENVS, **options: str) -> GrowthVectorEnv:
    """The smoke preset, smaller, with growth in a hurry."""
    return GrowthVectorEnv(num_envs, preset="smoke", overrides=OVERRIDES, actions=actions, **options)


def plain_env(run_seed: int) -> GrowthEnv:
    """The environment of a run with the same configuration."""
    words = ("+preset=smoke", *OVERRIDES, f"trainer.num_envs={NUM_ENVS}")
    experiment = build_experiment(compose(*words))
    pool = experiment.pool("train", experiment.config.instances.num_train)
    twins = experiment.twins(NUM_ENVS, lambda done, total: None)
    return experiment.env(range(NUM_ENVS), pool, twins, run_seed=run_seed, measure_test=False)


def uniform(masks: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw one legal flat action per environment."""
    return np.array([generator.choice(np.flatnonzero(row)) for row in masks])
