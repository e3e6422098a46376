"""Which experiment a checkpoint or a tuning belongs to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from esper.config import to_plain
from esper.config.naming import DERIVED
from esper.config.root import Config

SECTIONS = ("task", "host", "instances", "env", "slots", "observation", "counterfactual", "reward", "amp", "plugins")
"""What hosts are, and what they are worth, depends on these."""

FREE = {
    "instances": ("num_held_out", "held_out_families"),
    "env": ("mapping",),
    "observation": tuple(key.partition(".")[2] for key in DERIVED),
}
"""Keys in which runs of one experiment may differ: training does not depend on them, or only up to rounding, or they
follow from others."""


def experiment_sections(config: Config) -> dict[str, Any]:
    """Sections in which runs must agree for their hosts to be comparable, as plain values."""
    plain = to_plain(config)
    sections = {name: plain[name] for name in SECTIONS}
    for name, keys in FREE.items():
        sections[name] = {key: value for key, value in sections[name].items() if key not in keys}
    return sections


def fingerprint(config: Config) -> str:
    """The same for two configurations exactly if they are of one experiment."""
    return hashlib.sha256(json.dumps(experiment_sections(config), sort_keys=True).encode()).hexdigest()[:16]
