"""Matplotlib as Esper uses it: figures alone, drawn into files, with no window, no pyplot and no backend to choose.

A notebook names its backend in ``MPLBACKEND`` for every process that it starts, and matplotlib refuses to be imported
where that one is not installed. So the name is kept from it, and given back for others who want to show their figures.
"""

from __future__ import annotations

import contextlib
import os

_named = os.environ.pop("MPLBACKEND", None)

import matplotlib  # noqa: E402  # only now
from matplotlib import colormaps, rc_context  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.colors import Normalize  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.text import Annotation  # noqa: E402
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

if _named is not None:
    os.environ["MPLBACKEND"] = _named
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _named

__all__ = (
    "Annotation",
    "Artist",
    "Axes",
    "Bbox",
    "Figure",
    "FigureCanvasAgg",
    "Line2D",
    "MaxNLocator",
    "Normalize",
    "Patch",
    "PercentFormatter",
    "StrMethodFormatter",
    "colormaps",
    "rc_context",
)
