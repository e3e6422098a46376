"""One colour per lifecycle stage and op, the same in the terminal and in plots.

Okabe and Ito's palette, which stays apart for colour-blind readers, with greys for "nothing is happening".
"""

from __future__ import annotations

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

CONTROLLER_COLOUR = "#0072B2"
NEVER_COLOUR = "#6E6E6E"
