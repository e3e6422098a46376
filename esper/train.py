"""Train a controller: ``python -m esper.train +preset=digits seed=1``, or a sweep with ``-m``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esper.process import start

if TYPE_CHECKING:
    from esper.config.root import Config


def train(config: Config, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None:
    """Train a controller, evaluate it, and leave everything in ``run_dir``."""
    # Imported here, so that help and errors of use come at once.
    from esper.config.entries import TRAIN
    from esper.launch import launch

    launch(TRAIN, config, run_dir, isolated=isolated, quiet=quiet)


def main() -> None:
    """Compose the configuration from the command line, check it, and train."""
    # Imported here, so that the process listens before it imports what takes long.
    from esper.config import cli
    from esper.config.entries import TRAIN
    from esper.config.preflight import preflight

    cli.run(TRAIN, train, preflight)


if __name__ == "__main__":
    raise SystemExit(start("esper.train"))
