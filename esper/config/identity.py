"""The single definition of "the same configuration": keys to ignore for each purpose, and comparison of the rest.

Resume and transfer, folders of jobs, tunings and reports each compare configurations of plain values without a set of
ignored keys. A name in such a set stands for a key or for a whole section.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

MAPPING = "env.mapping"

COMPUTED = ("observation.num_features", "observation.num_blueprints")
"""Keys computed from others and saved for readers."""

NOT_OF_A_RUN = ("name", "resume", "telemetry", "wandb", *COMPUTED)
"""Keys to ignore when searching for a run: they do not change what a run computes."""

FREE_ON_RESUME = (
    *NOT_OF_A_RUN,
    *("devices", "num_threads", "evaluation", "trainer.num_iterations", "trainer.checkpoint_every"),
)
"""Keys to ignore on resume: a resumed run may change them."""

NOT_IN_FOLDERS = ("name", "resume", "telemetry", "wandb", "console", "devices", "num_threads", *COMPUTED)
"""Keys to ignore in the names of folders: a sweep may be resumed and displayed with other values."""

NOT_IN_REPORTS = (
    *("seed", "name", "devices", "num_threads", "resume", MAPPING, "trainer.checkpoint_every"),
    *("telemetry", "wandb", "checkpoint", "evaluation.controllers", *COMPUTED),
)
"""Keys to ignore in reports, which group runs: the run seed, devices, mapping, and stored output."""

EXPERIMENT = ("task", "host", "instances", "env", "slots", "observation", "counterfactual", "reward", "amp", "plugins")
"""Sections that determine hosts and scores: tunings, and checkpoints evaluated together, must agree in them."""

FREE_IN_EXPERIMENTS = (
    *("instances.num_held_out", "instances.num_validation", "instances.held_out_families"),
    *(MAPPING, *COMPUTED),
)
"""Keys to ignore in those sections: training does not depend on them, or only up to rounding."""


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted keys; an empty section is a leaf."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def without(plain: Mapping[str, Any], ignored: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Copy nested values without the ignored keys and sections."""
    return {
        key: without(value, ignored, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in plain.items()
        if f"{prefix}{key}" not in ignored
    }


def digest(*parts: object, length: int = 8) -> str:
    """Hash texts and plain values to a short string, independent of the order of keys."""
    texts = [part if isinstance(part, str) else json.dumps(part, sort_keys=True) for part in parts]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:length]


def differences(
    saved: Mapping[str, Any], asked: Mapping[str, Any], ignored: Collection[str] = NOT_OF_A_RUN
) -> list[str]:
    """List the keys in which a run differs from a requested configuration, as ``key=<saved>, not <asked>``.

    Args:
        saved: configuration of a run, with the mapping that it chose.
        asked: requested configuration; ``env.mapping=auto`` agrees with any chosen mapping.
        ignored: keys and sections to ignore.
    """
    before, now = flat(without(saved, ignored)), flat(without(asked, ignored))
    if now.get(MAPPING) == "auto":
        now[MAPPING] = before.get(MAPPING)
    keys = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    return [f"{key}={before.get(key)}, not {now.get(key)}" for key in keys]


def experiment_sections(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections in which runs must agree for their hosts to be comparable."""
    counted = without(plain, FREE_IN_EXPERIMENTS)
    return {name: counted[name] for name in EXPERIMENT}


def fingerprint(plain: Mapping[str, Any]) -> str:
    """Hash a configuration so that two are equal exactly if they belong to one experiment."""
    return digest(experiment_sections(plain), length=16)
