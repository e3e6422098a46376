"""Cache on the user's disk for results that take long to recompute."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "ESPER_CACHE_DIR"


def cache_dir() -> Path:
    """Return ``$ESPER_CACHE_DIR``, or ``esper`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; it need not exist yet."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "esper"
