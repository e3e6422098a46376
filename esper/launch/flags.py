"""Hydra's flags (``--cfg``, ``--config-dir``, …); invalid combinations and unsupported flags end in one line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from esper.config.errors import UsageError
from esper.config.hydra_private import get_args_parser
from esper.config.paths import CONF_DIR

SHELL_COMPLETION = ("install", "uninstall", "query")
SHELLS = ("bash", "fish", "zsh")


def parse_flags() -> argparse.Namespace:
    """Parse the command line into flags and overrides.

    Raises:
        UsageError: an unknown flag, one without its value, or flags that exclude each other.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # argparse itself prints a page of usage
    arguments = parser.parse_intermixed_args()
    _check_places(arguments)
    _check_modes(arguments)
    return arguments


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"{message}; --help lists keys, --hydra-help flags")


def _check_places(arguments: argparse.Namespace) -> None:
    if arguments.config_path is not None:
        raise UsageError(
            f"--config-path={arguments.config_path} would take the place of Esper's own configuration: "
            "add a folder to it with --config-dir=<folder>"
        )
    if arguments.config_dir is not None:
        _check_folder(Path(arguments.config_dir))
    if arguments.experimental_rerun is not None:
        raise UsageError(
            f"--experimental-rerun={arguments.experimental_rerun}: Esper leaves no such file; resume a run with "
            "resume=<folder>"
        )


def _check_folder(folder: Path) -> None:
    """Refuse a missing folder, and files in it that are shadowed by Esper's own."""
    if not folder.is_dir():
        raise UsageError(f"--config-dir: no such folder {str(folder)!r}")
    for own in CONF_DIR.rglob("*.yaml"):
        other = folder / own.relative_to(CONF_DIR)
        if other.is_file() and other.read_bytes() != own.read_bytes():
            raise UsageError(
                f"--config-dir: {other} has the name of one of Esper's own files, which is read instead: rename it"
            )


def _check_modes(arguments: argparse.Namespace) -> None:
    modes = {
        "--run": arguments.run,
        "--multirun": arguments.multirun,
        "--cfg": arguments.cfg,
        "--info": arguments.info,
        "--shell-completion": arguments.shell_completion,
    }
    chosen = [flag for flag, given in modes.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} do not go together: use one of them")
    for flag, given in (("--resolve", arguments.resolve), ("--package", arguments.package)):
        if given and not arguments.cfg:
            raise UsageError(f"{flag} says how --cfg shows a configuration: add --cfg=job")
    if arguments.shell_completion:
        _check_completion(arguments.overrides)


def _check_completion(words: list[str]) -> None:
    asked = [word.partition("=") for word in words]
    if len(asked) != 1 or asked[0][0] not in SHELL_COMPLETION or asked[0][2] not in SHELLS:
        raise UsageError(
            f"--shell-completion needs one word, {' or '.join(f'{name}=<shell>' for name in SHELL_COMPLETION)}, "
            f"the shell being {', '.join(SHELLS)}; got {' '.join(words) or 'none'}"
        )
    if asked[0][0] == "query" and "COMP_LINE" not in os.environ:
        raise UsageError("--shell-completion query=… is what a shell asks: it sets COMP_LINE; install=<shell> is yours")
