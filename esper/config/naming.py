"""Names of folders: the same for the same sweep and configuration, whenever and in whatever order they are typed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

NOT_COUNTED = ("name", "resume", "telemetry", "wandb", "console", "devices", "num_threads")
"""Keys and sections in which the same run may differ: a sweep goes on where, and watched as, one likes."""

MAX_LABEL = 80
"""Letters of a job's folder that say what is swept."""


def configuration_letters(plain: Mapping[str, Any]) -> str:
    """Eight letters that stand for a configuration of plain values."""
    return letters([json.dumps({key: value for key, value in plain.items() if key not in NOT_COUNTED}, sort_keys=True)])


def readable(swept: Sequence[str]) -> str:
    """What is swept, as a folder's name begins: ``ent_coef_0.01-num_slots_3-``; the seed has its own place."""
    parts = []
    for word in swept:
        key, _, value = word.lstrip("+").partition("=")
        if key != "seed":
            parts.append(re.sub(r"[^\w.+-]+|_+", "_", f"{key.rpartition('.')[2]}_{value.strip('[{')}").strip("_"))
    return f"{'-'.join(parts)[:MAX_LABEL]}-" if parts else ""


def sweep_name(label: str, preset: str | None, words: Sequence[str]) -> str:
    """Name of a sweep's folder: the same for the same command, whatever its order.

    Args:
        label: preset, task or entry point.
        preset: sweep preset, if there is one; alone, it is the name.
        words: overrides of the sweep, as typed.
    """
    counted = sorted(
        word
        for word in words
        if not re.match(r"\+?(sweep|preset)=", word)
        and not any(re.match(rf"\+*{re.escape(key)}[.=]", word) for key in NOT_COUNTED)
    )
    name = preset or label
    if preset is not None and not counted:
        return name
    keys = [word.lstrip("+").partition("=")[0].rpartition(".")[2] for word in counted if _sweeps(word)]
    return "-".join([name, *keys, letters([name, *counted])])


def _sweeps(word: str) -> bool:
    value = word.partition("=")[2]
    return ("," in value and value[:1] not in "[{'\"") or re.match(r"(choice|range|glob)\(", value) is not None


def letters(words: Sequence[str]) -> str:
    """Eight letters that stand for words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]
