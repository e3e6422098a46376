"""The page ``docs/configuration.md``, made of the dataclasses: every key with type, default, range and meaning.

``python -m esper.config.reference > docs/configuration.md`` renews it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from esper.config.evaluate import EvaluateConfig
from esper.config.export import ExportConfig
from esper.config.hosts import HOST_GROUP, HostConfig, schema_of
from esper.config.naming import as_typed
from esper.config.root import Config
from esper.runtime.checks import MAX_COUNT

REQUIRED = "???"
"""Default of a key that must be given."""

WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "value"}
"""Types as people say them."""

BEYOND = {int: (-(10**12), 10**12, MAX_COUNT), float: (-1e30, 1e30)}
"""Numbers of each type that some limit refuses; those of other keys, after the limit of any count."""

_LIMIT = re.compile(r" must be (at least|above|at most|between) (\S+?)(?: and (\S+?))?(?: \((.+)\))?, got ")

Build = Callable[[tuple[str, ...], object], object]
"""Constructor of a configuration in which the key at a path of names has another value."""

INTRODUCTION = """\
# Configuration

<!-- Made by: python -m esper.config.reference > docs/configuration.md -->

Every key of every command, with its default in the dataclasses of `esper/config`. An unknown key, a wrong type and a
value out of range are refused before anything starts. `python -m esper.train --help +preset=digits` shows the values of
a preset, [conf/README.md](../conf/README.md) explains groups and files.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: full name, as typed on the command line.
        type: type in words.
        default: default as typed on the command line.
        range: allowed values, empty if the type says all.
        meaning: its documentation.
    """

    name: str
    type: str
    default: str
    range: str
    meaning: str


def page() -> str:
    """Write the page."""
    root = keys(Config, _changed(Config()))
    sections: dict[str, list[Key]] = {}
    for key in root:
        sections.setdefault(key.name.partition(".")[0] if "." in key.name else "", []).append(key)
    documents = {item.name: text for item, text in _documented(Config).items()}
    parts = [INTRODUCTION, "## Training: `python -m esper.train`", _table(sections.pop(""))]
    for section, found in sections.items():
        if section == "host":
            parts += _hosts(documents[section])
        else:
            parts += [f"### `{section}`", documents[section], _table(found)]
    evaluation = EvaluateConfig(checkpoint="run")
    parts += ["## Evaluation: `python -m esper.evaluate`", _table(keys(EvaluateConfig, _changed(evaluation)))]
    export = ExportConfig(run="run", out="out")
    parts += ["## Export: `python -m esper.export`", _table(keys(ExportConfig, _changed(export)))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _hosts(meaning: str) -> Iterator[str]:
    """Write the section of hosts: the keys that all kinds share, then those of each kind."""
    yield "### `host`"
    kinds = ", ".join(f"`host={kind}`" for kind in HOST_GROUP)
    yield f"{meaning} The group `host` chooses its kind, and with it the keys that it has: {kinds}."
    own = {item.name for item in fields(HostConfig)}
    for number, (kind, schema) in enumerate(HOST_GROUP.items()):
        complete = all(item.default != REQUIRED for item in fields(schema))
        found = keys(schema, _changed(schema()) if complete else _unchecked, "host.")
        if number == 0:
            yield _table([key for key in found if key.name.removeprefix("host.") in own])
        yield f"#### `host={kind}`"
        others = [key for key in found if key.name.removeprefix("host.") not in own]
        yield _table(others) if others else "No further keys."


def _table(found: list[Key]) -> str:
    rows = ["| key | type | default | range | meaning |", "|---|---|---|---|---|"]
    for key in found:
        cells = (f"`{key.name}`", key.type, f"`{key.default}`", key.range, key.meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def keys(schema: type, build: Build, prefix: str = "", path: tuple[str, ...] = ()) -> list[Key]:
    """List the keys of a dataclass and of those in it, in their order.

    Args:
        schema: dataclass of a configuration or of a section.
        build: constructor of a configuration with another value at a path, for its checks.
        prefix: start of the keys' names.
        path: names of the sections above.
    """
    hints, found = get_type_hints(schema), []
    for item, meaning in _documented(schema).items():
        kind, nullable = _without_null(hints[item.name])
        if is_dataclass(kind):
            inner: Any = HOST_GROUP["cnn"] if kind is HostConfig else kind
            found += keys(inner, build, f"{prefix}{item.name}.", (*path, item.name))
            continue
        name = f"{prefix}{item.name}"
        found.append(
            Key(
                name=name,
                type=_words(kind) + (" or null" if nullable else ""),
                default=_default(item),
                range=_range(name, kind, partial(build, (*path, item.name))),
                meaning=meaning,
            )
        )
    return found


def meanings(schema: type, host: str | None = None) -> dict[str, str]:
    """Return the documentation of every key by full name, those of a kind of host among them."""
    found = keys(schema, _unchecked) + ([] if host is None else keys(schema_of(host), _unchecked, "host."))
    return {key.name: key.meaning for key in found}


@cache
def _documented(schema: type) -> Mapping[Field[Any], str]:
    """Return the fields of a dataclass with the docstrings that follow them."""
    texts: dict[str, str] = {}
    for cls in reversed(schema.__mro__[:-1]):
        [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(node, ast.ClassDef)
        for item, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                texts[ast.unparse(item.target)] = " ".join(str(after.value.value).replace("``", "`").split())
    return {item: texts[item.name] for item in fields(schema)}


def _without_null(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, UnionType):
        [kind] = [each for each in get_args(hint) if each is not NoneType]
        return kind, True
    return hint, False


def _words(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"list of {_words(get_args(kind)[0])}s".replace("texts", "text").replace("falses", "false")
    if get_origin(kind) is dict:
        return f"{WORDS.get(get_args(kind)[1], 'section')}s by name"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one word"
    return WORDS.get(kind, "section")


def _default(item: Field[Any]) -> str:
    value = item.default_factory() if item.default_factory is not MISSING else item.default
    if isinstance(value, dict):
        value = {key: _plain(entry) for key, entry in value.items()}
    return as_typed(value.value if isinstance(value, Enum) else value)


def _plain(entry: Any) -> Any:
    return {item.name: getattr(entry, item.name) for item in fields(entry)} if is_dataclass(entry) else entry


def _range(name: str, kind: Any, build: Callable[[object], object]) -> str:
    """Find the limits of a number by offering values beyond them; list the choices of a word."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    if kind not in BEYOND:
        return ""
    limits = []
    for value in BEYOND[kind]:
        try:
            build(value)
        except ValueError as error:
            message = str(error)
            match = _LIMIT.match(message.removeprefix(name)) if message.startswith(name) else None
            if match is not None:
                limits.append(_limit(*match.groups()))
    return ", ".join(dict.fromkeys(filter(None, limits)))


def _limit(word: str, first: str, second: str | None, other: str | None) -> str:
    if first == str(MAX_COUNT):
        return ""
    if word == "between":
        return f"{first} to {second}"
    sign = {"at least": "≥", "above": ">", "at most": "≤"}[word]
    return f"{sign} `{other}`" if other and re.fullmatch(r"[\w. -]+", other) and "." in other else f"{sign} {first}"


def _unchecked(path: tuple[str, ...], value: object) -> None:
    """Accept every value."""


def _changed(config: Any) -> Build:
    """Return a constructor of configurations that differ from this one in one key."""

    def build(path: tuple[str, ...], value: object) -> object:
        def at(node: Any, names: tuple[str, ...]) -> Any:
            return replace(node, **{names[0]: value if len(names) == 1 else at(getattr(node, names[0]), names[1:])})

        return at(config, path)

    return build


if __name__ == "__main__":
    sys.stdout.write(page())
