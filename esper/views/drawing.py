"""Use of matplotlib: standalone figures drawn to files, without windows, pyplot or a backend.

A notebook sets ``MPLBACKEND`` for every process that it starts, and matplotlib cannot be imported if that backend is
not installed. So the variable is removed during the import, and restored afterwards for other code that shows figures.
"""

from __future__ import annotations

import contextlib
import os

_named = os.environ.pop("MPLBACKEND", None)

import matplotlib  # noqa: E402  # only now
from matplotlib import colormaps, rc_context  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.colors import Normalize  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

if _named is not None:
    os.environ["MPLBACKEND"] = _named
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _named

__all__ = (
    "Artist",
    "Axes",
    "Bbox",
    "Figure",
    "Line2D",
    "MaxNLocator",
    "Normalize",
    "Patch",
    "PercentFormatter",
    "StrMethodFormatter",
    "colormaps",
    "rc_context",
)
