"""Judge trained controllers: ``python -m esper.evaluate checkpoint=outputs/<run> num_hosts=64``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esper.launch.begin import start

if TYPE_CHECKING:
    from esper.config.evaluate import EvaluateConfig


def check(config: EvaluateConfig) -> None:
    """Refuse what cannot be evaluated."""
    # Imported here, so that help and errors of use come at once.
    from esper.experiment.preflight import visible_to_ranks

    visible_to_ranks(config)
    from esper.evaluation.run import check

    check(config)


def evaluate(config: EvaluateConfig, run_dir: Path, *, isolated: bool = False, quiet: bool = False) -> None:
    """Play controllers and their controls on held-out hosts, and leave everything in ``run_dir``."""
    # Imported here, so that help and errors of use come at once.
    from esper.launch.entries import EVALUATE
    from esper.launch.spawn import launch

    launch(EVALUATE, config, run_dir, isolated=isolated, quiet=quiet)


def main() -> None:
    """Compose the configuration from the command line, check it, and evaluate."""
    # Imported here, so that the process listens before it imports what takes long.
    from esper.launch import cli
    from esper.launch.entries import EVALUATE

    cli.run(EVALUATE, evaluate, check)


if __name__ == "__main__":
    raise SystemExit(start("esper.evaluate"))
