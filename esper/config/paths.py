"""Location of the YAML files: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

_CANDIDATES = (_PACKAGE / "conf", _PACKAGE.parent / "conf")

CONF_DIR: Path = next(path for path in _CANDIDATES if (path / "config.yaml").is_file())
"""Absolute path of the configuration folder."""


def lasting(path: str) -> str:
    """Return the absolute form of a path, so that a run that is resumed from another folder finds it."""
    return os.path.abspath(expanded(path))


def expanded(path: str) -> str:
    """Replace a leading ``~`` by the home folder, if that is known; a shell does so only at the start of an
    argument.
    """
    return os.path.expanduser(path)
