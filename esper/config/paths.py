"""Where the YAML files are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

_CANDIDATES = (_PACKAGE / "conf", _PACKAGE.parent / "conf")

CONF_DIR: Path = next(path for path in _CANDIDATES if (path / "config.yaml").is_file())
"""Absolute path of the configuration folder."""


def expanded(path: str) -> str:
    """A path with ``~`` as the home folder, as a shell has it only where a word begins; as it is if that is unknown."""
    return os.path.expanduser(path)
