"""The growth environment of a configuration, ready for ``reset`` and ``step``."""

from __future__ import annotations

from esper.config.errors import refused
from esper.config.learning import Twin
from esper.config.root import Config
from esper.config.store import check_config
from esper.envs.growth import GrowthEnv
from esper.envs.instances import SPLITS
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.runtime.choices import known


def build_env(config: Config, split: str = "train") -> GrowthEnv:
    """Build the environment that a run trains in, or that an evaluation plays in, with all its hosts.

    Never-grown twins of all hosts are trained first, which takes about as long as an iteration of a run.

    Args:
        config: configuration of the run, as :func:`esper.compose` makes it.
        split: ``"train"`` for ``trainer.num_envs`` training hosts at once; ``"held_out"`` for ``evaluation.num_hosts``
            held-out ones, or ``"validation"`` for ``instances.num_validation``, whose records have test scores too.

    Raises:
        UsageError: the configuration cannot run, in one line.
        ValueError: an unknown split.
    """
    check_config(config, "esper.build_env")
    known("split", split, SPLITS)
    with refused(Config):
        preflight(config)
        experiment = build_experiment(config)
    pool = experiment.pool(split, experiment.num_hosts(split))
    num_envs = config.trainer.num_envs if split == "train" else len(pool)
    twins = None
    if config.reward.twin is Twin.cached:
        twins = experiment.twins(num_envs, lambda done, total: None)
        twins.require(pool)
    return experiment.env(range(num_envs), pool, twins, run_seed=config.seed, measure_test=split != "train")
