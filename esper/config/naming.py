"""Names of folders, determined by sweep and configuration alone, not by time or the order of arguments."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esper.config.identity import NOT_IN_FOLDERS, digest, flat, without

MAX_LABEL = 80
"""Largest number of characters for the swept values in a job's folder name."""

MAX_BYTES = 180
"""Largest number of bytes in a name's readable part, which keeps the name well below the limit of 255."""

MAX_SEED = 24
"""Largest number of characters for the seed in a folder name."""

_UNMISTAKABLE = re.compile(r"[a-z0-9.]+(_[a-z0-9.]+)*")
"""Pattern of values that can be part of a folder name unchanged, on every file system."""


def as_typed(value: object) -> str:
    """Format a value as on the command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_typed, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def configuration_letters(plain: Mapping[str, Any], words: Sequence[str] = ()) -> str:
    """Hash a configuration of plain values, and arguments that it does not contain, to eight characters."""
    return digest(without(plain, NOT_IN_FOLDERS), *sorted(words))


def readable(swept: Sequence[str]) -> str:
    """Format swept values as the start of a folder name: ``ent_coef_0.01-num_slots_3-``; the seed is separate."""
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
        beginning: swept values, for a readable name.
        end: seed, and a hash of the configuration.
        by_end: true if the end alone identifies the job.
    """

    beginning: str
    end: str
    by_end: bool

    def __str__(self) -> str:
        return self.beginning + self.end

    def means(self, folder: str) -> bool:
        """Return whether a folder is this job's, possibly with its values in another order or, if the end fits,
        spelling.
        """
        if not f"-{folder}".endswith(f"-{self.end}"):
            return False
        return self.by_end or sorted(folder.split("-")) == sorted(str(self).split("-"))


def job_name(plain: Mapping[str, Any], swept: Sequence[str]) -> JobName:
    """Return the name of a job's folder: unique to its configuration, whatever the order of arguments.

    Args:
        plain: configuration of the job, as plain values.
        swept: arguments that vary between jobs, in the spelling of :func:`as_typed`.
    """
    # Configurations that differ in their arguments only: in ignored keys, or in choices of files.
    unseen = [word for word in swept if not _counts(word, plain)]
    beginning = readable(swept)
    plainly = beginning.removesuffix("-") == _whole_label(swept) and all(
        _UNMISTAKABLE.fullmatch(_key_and_value(word)[1]) for word in unseen
    )
    shown = configuration_letters(plain, [] if plainly else unseen)
    end = f"seed{plain['seed']}"[:MAX_SEED] + f"-{shown}"
    return JobName(beginning=beginning, end=end, by_end=not unseen)


def _counts(word: str, plain: Mapping[str, Any]) -> bool:
    """Return whether an argument sets a value that is part of a configuration's identity."""
    key, _ = _key_and_value(word)
    value = flat(without(plain, NOT_IN_FOLDERS)).get(key)
    return value is not None and not isinstance(value, Mapping)


def sweep_name(label: str, preset: str | None, words: Sequence[str]) -> str:
    """Return the name of a sweep's folder, the same for the same command in any order of arguments.

    Args:
        label: preset, task or entry point.
        preset: sweep preset, if there is one; alone, it is the name.
        words: overrides of the sweep, as typed.
    """
    counted = sorted(
        word
        for word in words
        if not re.match(r"\+?(sweep|preset)=", word)
        and not any(re.match(rf"\+*{re.escape(key)}[.=]", word) for key in NOT_IN_FOLDERS)
    )
    name = preset or label
    if preset is not None and not counted:
        return name
    keys = [_key_and_value(word)[0].rpartition(".")[2].replace("/", "_") for word in counted if _sweeps(word)]
    beginning = "-".join([name, *keys]).encode()[:MAX_BYTES].decode(errors="ignore")
    return f"{beginning}-{digest(name, *counted)}"


def _sweeps(word: str) -> bool:
    value = word.partition("=")[2]
    return ("," in value and value[:1] not in "[{'\"") or re.match(r"(choice|range|glob)\(", value) is not None
