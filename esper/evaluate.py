"""Evaluate trained controllers: ``python -m esper.evaluate checkpoint=outputs/<run> num_hosts=64``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.launch.begin import start

if TYPE_CHECKING:
    from esper.config.evaluate import EvaluateConfig
    from esper.runtime.run_folder import RunFolder


def check(config: EvaluateConfig) -> None:
    """Refuse a configuration that cannot be evaluated."""
    from esper.experiment.preflight import visible_to_ranks

    visible_to_ranks(config)  # before the imports that only a run needs
    from esper.evaluation.run import check

    check(config)


def run_evaluation(
    checkpoint: str | Path | Sequence[str | Path], run_dir: str | Path | None = None, **keys: Any
) -> RunFolder:
    """Evaluate trained controllers from Python, as ``python -m esper.evaluate`` does.

    Args:
        checkpoint: a run folder, checkpoint, or name of a shipped controller, or one per run seed of one configuration.
        run_dir: folder of the evaluation; ``None`` for a new one below ``outputs/``.
        **keys: keys of the configuration: ``num_hosts=16, controllers=["learned", "never"]``.

    Returns:
        The folder, whose attributes are the paths of its files.

    Raises:
        UsageError: the configuration cannot be evaluated, in one line; nothing has been written.
        RunError: the evaluation failed; says what to do.
    """
    from esper.config import from_plain
    from esper.config.errors import UsageError, refused
    from esper.config.evaluate import EvaluateConfig
    from esper.launch.directly import run_directly
    from esper.launch.entries import EVALUATE

    paths: list[Any] = [checkpoint]
    if isinstance(checkpoint, Sequence) and not isinstance(checkpoint, str):
        paths = list(checkpoint)
    strange = [type(path).__name__ for path in paths if not isinstance(path, str | Path)]
    if strange:
        raise UsageError(
            f"checkpoint must be a path or a list of paths, got a {strange[0]}: with run = "
            "esper.run_training(esper.compose('+preset=smoke')) it is run.path"
        )
    named = {"name": f"evaluate-{Path(paths[0]).stem}"} if paths else {}
    given = {"checkpoint": list(map(str, paths)), **named, **keys}
    with refused(EvaluateConfig):
        config = from_plain(given, EvaluateConfig)
    return run_directly(EVALUATE, config, run_dir, check)


def main() -> None:
    """Compose the configuration from the command line, check it, and evaluate."""
    # Imported here, so that the process handles signals before slow imports.
    from esper.launch import cli
    from esper.launch.entries import EVALUATE
    from esper.launch.spawn import launch

    cli.run(EVALUATE, partial(launch, EVALUATE), check)


if __name__ == "__main__":
    raise SystemExit(start("esper.evaluate"))
