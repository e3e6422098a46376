"""Train a controller: ``python -m esper.train +preset=digits seed=1``, or a sweep with ``-m``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from esper.launch.begin import start

if TYPE_CHECKING:
    from esper.config import Config
    from esper.runtime.run_folder import RunFolder


def check(config: Config) -> None:
    """Refuse a configuration that cannot be trained."""
    from esper.experiment.preflight import preflight  # not above: help and most errors of use do not wait for torch

    preflight(config)


def run_training(config: Config, run_dir: str | Path | None = None) -> RunFolder:
    """Train a controller from Python, as ``python -m esper.train`` does: ``run_training(compose("+preset=smoke"))``.

    With several devices each has a process of its own, so that a script needs ``if __name__ == "__main__":``.

    Args:
        config: configuration of the run, as :func:`esper.compose` makes it.
        run_dir: run folder; ``None`` for a new one below ``outputs/``. With ``config.resume="auto"`` the run that
            is there is resumed.

    Returns:
        The run folder, whose attributes are the paths of its files: ``metrics``, ``result``, ``plots``, ….

    Raises:
        UsageError: the configuration cannot run, in one line; nothing has been written.
        RunError: the run failed; says what to do.
    """
    from esper.config import check_config
    from esper.launch.directly import run_directly
    from esper.launch.entries import TRAIN

    check_config(config, "esper.run_training")
    return run_directly(TRAIN, config, run_dir, check)


def main() -> None:
    """Compose the configuration from the command line, check it, and train."""
    # Imported here, so that the process handles signals before slow imports.
    from esper.launch import cli
    from esper.launch.entries import TRAIN
    from esper.launch.spawn import launch

    cli.run(TRAIN, partial(launch, TRAIN), check)


if __name__ == "__main__":
    raise SystemExit(start("esper.train"))
