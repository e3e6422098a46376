"""Names of folders: the same for the same sweep and configuration, whenever and in whatever order they are typed."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_COUNTED = ("name", "resume", "telemetry", "wandb", "console", "devices", "num_threads")
"""Keys and sections in which the same run may differ: a sweep goes on where, and watched as, one likes."""

DERIVED = ("observation.num_features", "observation.num_blueprints")
"""Keys that follow from others and are there to be seen: no two configurations differ in them alone."""

MAX_LABEL = 80
"""Letters of a job's folder that say what is swept."""

MAX_BYTES = 180
"""Bytes of a name's readable part; with what follows it, a name stays well below the 255 that file systems take."""

MAX_SEED = 24
"""Letters of a folder that say the seed."""

_UNMISTAKABLE = re.compile(r"[a-z0-9.]+(_[a-z0-9.]+)*")
"""Values that a folder's name repeats as they are, and that no file system takes for others."""


def as_typed(value: object) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_typed, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def configuration_letters(plain: Mapping[str, Any], words: Sequence[str] = ()) -> str:
    """Eight letters that stand for a configuration of plain values, and for words that it does not show."""
    counted = {key: value for key, value in plain.items() if key not in NOT_COUNTED}
    for section, _, name in (key.partition(".") for key in DERIVED):
        if section in counted:
            counted[section] = {key: value for key, value in counted[section].items() if key != name}
    return letters([json.dumps(counted, sort_keys=True), *sorted(words)])


def readable(swept: Sequence[str]) -> str:
    """What is swept, as a folder's name begins: ``ent_coef_0.01-num_slots_3-``; the seed has its own place."""
    whole = _whole_label(swept)
    label = whole[:MAX_LABEL].encode()[:MAX_BYTES].decode(errors="ignore")
    return f"{label}-" if label else ""


def _whole_label(swept: Sequence[str]) -> str:
    parts = []
    for key, value in sorted(_key_and_value(word) for word in swept):
        if key != "seed":
            text = unicodedata.normalize("NFC", f"{key.rpartition('.')[2]}_{value.strip('[{')}")
            parts.append(re.sub(r"[^\w.+-]+|_+", "_", text).strip("_"))
    return "-".join(parts)


def _key_and_value(word: str) -> tuple[str, str]:
    key, _, value = word.lstrip("+").partition("=")
    return key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """Name of a job's folder.

    Attributes:
        beginning: what is swept, for people.
        end: seed, and letters that stand for the configuration.
        by_end: whether the end alone tells the job from others.
    """

    beginning: str
    end: str
    by_end: bool

    def __str__(self) -> str:
        return self.beginning + self.end

    def means(self, folder: str) -> bool:
        """Tell whether a folder is this job's, its words perhaps in another order or, if the end fits, spelling."""
        if not f"-{folder}".endswith(f"-{self.end}"):
            return False
        return self.by_end or sorted(folder.split("-")) == sorted(str(self).split("-"))


def job_name(plain: Mapping[str, Any], swept: Sequence[str]) -> JobName:
    """Name of a job's folder: a function of its configuration, no other job's, whatever the order of words.

    Args:
        plain: configuration of the job, as plain values.
        swept: words that differ from job to job, in the spelling of :func:`as_typed`.
    """
    # Configurations that only the words tell apart: in keys that do not count, or in choices of files.
    unseen = [word for word in swept if not _counts(word, plain)]
    beginning = readable(swept)
    plainly = beginning.removesuffix("-") == _whole_label(swept) and all(
        _UNMISTAKABLE.fullmatch(_key_and_value(word)[1]) for word in unseen
    )
    shown = configuration_letters(plain, [] if plainly else unseen)
    end = f"seed{plain['seed']}"[:MAX_SEED] + f"-{shown}"
    return JobName(beginning=beginning, end=end, by_end=not unseen)


def _counts(word: str, plain: Mapping[str, Any]) -> bool:
    """Tell whether a word sets a value that configurations are told apart by."""
    key, _ = _key_and_value(word)
    value: Any = plain if key.partition(".")[0] not in NOT_COUNTED else None
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None and not isinstance(value, Mapping)


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
    keys = [_key_and_value(word)[0].rpartition(".")[2].replace("/", "_") for word in counted if _sweeps(word)]
    beginning = "-".join([name, *keys]).encode()[:MAX_BYTES].decode(errors="ignore")
    return f"{beginning}-{letters([name, *counted])}"


def _sweeps(word: str) -> bool:
    value = word.partition("=")[2]
    return ("," in value and value[:1] not in "[{'\"") or re.match(r"(choice|range|glob)\(", value) is not None


def letters(words: Sequence[str]) -> str:
    """Eight letters that stand for words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]
