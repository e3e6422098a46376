"""Arguments as people type them: paths and other text need no quotes if they are unambiguous."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import AnyNode, DictConfig, OmegaConf, StringNode

from esper.config.errors import UsageError
from esper.config.hosts import HOST_GROUP
from esper.config.paths import expanded

FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Hydra's keys that hold paths."""

PATHS_OR_LISTS = ("checkpoint", "tuning")
"""Keys that hold a path or a list of paths, which the schema cannot express."""

_WORD = re.compile(r"(?P<key>\+{0,2}[\w./@-]+)=(?P<value>.*)", re.DOTALL)


def readable_by_hydra(words: Sequence[str], schema: type, *, sweeps: bool) -> list[str]:
    """Convert arguments to Hydra's grammar: quote values of text keys that would be read as anything else.

    Args:
        words: arguments as typed.
        schema: dataclass of the whole configuration.
        sweeps: true if a comma separates the values of a sweep.

    Raises:
        UsageError: an argument is ambiguous, and the message shows each reading with quotes; or it deletes a required
            key.
    """
    texts, lists = _keys(schema)
    found = []
    for word in words:
        _check_key(word, schema)
        match = _WORD.fullmatch(word)
        key = match["key"].lstrip("+") if match else ""
        if match is None or key not in texts | lists:
            found.append(word)
            continue
        value = expanded(match["value"]) if key in FOLDERS else match["value"]
        if key in FOLDERS and not value.strip("'\""):
            raise UsageError(f"{key} must be a folder, got {value!r}; the one you are in is {key}=.")
        found.append(f"{match['key']}={_quoted_if_needed(key, value, may_be_list=key in lists, sweeps=sweeps)}")
    return found


def quoted(text: str) -> str:
    """Quote text for Hydra, keeping ``${…}`` interpolations."""
    # A backslash counts only before a quote, where it must be doubled.
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", text)) + "'"


def _check_key(word: str, schema: type) -> None:
    """Refuse an argument without a key, or one that deletes a key of the schema: every key has a value."""
    if word.startswith("="):
        raise UsageError(f"cannot read {word!r}: no key before the equals sign; use key=value")
    key = word[1:].partition("=")[0]
    if word.startswith("~") and key in _all_keys(schema):
        raise UsageError(f"{word}: {key} cannot be deleted, it always has a value; use {key}=<value>")


@cache
def _all_keys(schema: type) -> frozenset[str]:
    """Return every key and section, without entries of dictionaries, which may be added and deleted."""

    def keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
        for name in map(str, node):
            yield f"{prefix}{name}"
            child = node._get_node(name)
            if isinstance(child, DictConfig) and not child._is_missing() and OmegaConf.get_type(child) is not dict:
                yield from keys(child, f"{prefix}{name}.")

    root = OmegaConf.structured(schema)
    hosts = HOST_GROUP.values() if "host" in root else ()
    return frozenset(keys(root)).union(*(keys(OmegaConf.structured(host), "host.") for host in hosts))


@cache
def _keys(schema: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys whose values are text, and those whose values are text or lists of text."""
    root = OmegaConf.structured(schema)
    texts = {*_text_keys(root), *FOLDERS}
    for host in HOST_GROUP.values() if "host" in root else ():
        texts |= set(_text_keys(OmegaConf.structured(host), "host."))
    lists = [key for key in PATHS_OR_LISTS if isinstance(root._get_node(key, validate_access=False), AnyNode)]
    return frozenset(texts), frozenset(lists)


def _text_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, node):
        child = node._get_node(key)
        if isinstance(child, StringNode):
            yield f"{prefix}{key}"
        elif isinstance(child, DictConfig) and not child._is_missing():
            yield from _text_keys(child, f"{prefix}{key}.")


def _quoted_if_needed(key: str, value: str, *, may_be_list: bool, sweeps: bool) -> str:
    """Quote the value so that Hydra reads it as text, if it cannot be anything else."""
    parsed = _parsed(key, value)
    if parsed is None:
        apart = ",".join(map(quoted, value.strip("[]").split(",")))
        if sweeps and "," in value:
            raise UsageError(
                f"cannot read {f'{key}={value}'!r} in a sweep: as one value, use {_typed(key, quoted(value))}; "
                f"as several, {_typed(key, apart)}"
            )
        if may_be_list and value.startswith("["):
            raise UsageError(f"cannot read {f'{key}={value}'!r}: use {_typed(key, f'[{apart}]')}")
        return quoted(value)
    if parsed.value_type is ValueType.SIMPLE_CHOICE_SWEEP and not sweeps and not may_be_list:
        return quoted(value)
    if isinstance(parsed._value, list | dict) and not may_be_list:
        raise UsageError(f"{key} must be one word, got {value}; if that is meant, use {_typed(key, quoted(value))}")
    # Numbers and booleans would be respelled: 1e3 as 1000.0, yes as True.
    return quoted(value) if isinstance(parsed._value, int | float) else value


def shell_word(key: str, path: Path) -> str:
    """Format an argument with a path as value, for typing into a shell."""
    return shlex.quote(f"{key}={path}")


def _typed(key: str, value: str) -> str:
    """Format an argument for typing into a shell."""
    word = f"{key}={value}"
    return shlex.quote(word) if set(word) & set('"$`\\!') else f'"{word}"'


def _parsed(key: str, value: str) -> Override | None:
    try:
        [word] = OverridesParser.create().parse_overrides([f"{key}={value}"])
    except HydraException:
        return None
    return word
