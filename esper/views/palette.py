"""Colours of lifecycle stages, ops and controllers, the same in the terminal and in every picture.

Okabe and Ito's palette, which colour-blind readers can distinguish, with greys for inactive states.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from esper.runtime.controller_names import (
    LEARNED,
    NEVER,
    RANDOM,
    SAMPLED,
    SCHEDULE,
    SCHEDULE_BEST,
    SCHEDULE_PER_FAMILY,
    STATIC_FINAL,
)

INK = "#333333"
"""Colour of text."""

STAGE_COLOURS: dict[str, str] = {
    "UNKNOWN": "#000000",
    "DORMANT": "#EFEFEF",
    "GERMINATED": "#F0E442",
    "TRAINING": "#56B4E9",
    "BLENDING": "#E69F00",
    "HOLDING": "#CC79A7",
    "FOSSILIZED": "#009E73",
    "CULLED": "#D55E00",
    "EMBARGOED": "#9A9A9A",
    "RESETTING": "#C4C4C4",
}

OP_COLOURS: dict[str, str] = {
    "WAIT": "#C4C4C4",
    "GERMINATE": "#F0E442",
    "CULL": "#D55E00",
    "FOSSILIZE": "#009E73",
    "SET_ALPHA_TARGET": "#E69F00",
    "EXTEND": "#56B4E9",
}
OP_MARKERS: dict[str, str] = {
    "GERMINATE": "^",
    "CULL": "X",
    "FOSSILIZE": "D",
    "SET_ALPHA_TARGET": "o",
    "EXTEND": ">",
}
"""Matplotlib markers of the ops that act on a slot."""

CONFIGURATION_COLOURS: tuple[str, ...] = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D1F",
)  # fmt: skip
"""Colours of a sweep's configurations, in their order."""


class Look(NamedTuple):
    """Colour and matplotlib marker of a controller."""

    colour: str
    marker: str


LOOKS: dict[str, Look] = {
    LEARNED: Look("#0072B2", "o"),
    SAMPLED: Look("#56B4E9", "o"),
    NEVER: Look("#6E6E6E", "o"),
    "heuristic": Look("#D55E00", "s"),
    "probe_rule": Look("#009E73", "D"),
    "probe_and_keep": Look("#B0568A", "^"),
    SCHEDULE: Look("#8C6D1F", ">"),
    SCHEDULE_BEST: Look("#B87A00", "v"),
    SCHEDULE_PER_FAMILY: Look("#7A5195", "<"),
    RANDOM: Look("#333333", "X"),
    STATIC_FINAL: Look("#00858A", "p"),
    "static_full": Look("#8A1C1C", "h"),
    "static_best": Look("#5B7F1E", "*"),
}
OTHER_COLOURS = ("#A0522D", "#4B4BC3", "#C2185B", "#2E8B57", "#7B6D8D", "#B8860B", "#20639B")
OTHER_MARKERS = ("P", "d", "8", "H")
"""Markers of controllers that are not named above."""


def look(controller: str) -> Look:
    """Return colour and marker of a controller, the same in every picture; for an unknown one they depend on its
    name.
    """
    number = zlib.crc32(controller.encode())
    other = Look(OTHER_COLOURS[number % len(OTHER_COLOURS)], OTHER_MARKERS[number // 7 % len(OTHER_MARKERS)])
    return LOOKS.get(controller, other)


CONTROLLER_COLOUR = LOOKS[LEARNED].colour
NEVER_COLOUR = LOOKS[NEVER].colour
