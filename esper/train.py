"""Train a controller: ``python -m esper.train +preset=digits seed=1``, or a sweep with ``-m``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esper.launch.begin import start

if TYPE_CHECKING:
    from esper.config.root import Config


def train(config: Config, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None:
    """Train a controller, evaluate it, and leave everything in ``run_dir``."""
    # Imported here, so that help and errors of use come at once.
    from esper.launch.entries import TRAIN
    from esper.launch.spawn import launch

    launch(TRAIN, config, run_dir, isolated=isolated, quiet=quiet)


def main() -> None:
    """Compose the configuration from the command line, check it, and train."""
    # Imported here, so that the process listens before it imports what takes long.
    from esper.experiment.preflight import preflight
    from esper.launch import cli
    from esper.launch.entries import TRAIN

    cli.run(TRAIN, train, preflight)


if __name__ == "__main__":
    raise SystemExit(start("esper.train"))
