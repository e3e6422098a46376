"""Errors of use in one line: the request, and the available choices."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import yaml
from hydra.errors import CompactHydraException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    ConfigTypeError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from esper.config.paths import CONF_DIR
from esper.runtime.choices import suggestion
from esper.runtime.user_code import UsersCodeError

ROOTS = ("config", "evaluate")
"""Root configurations; an error in their defaults lists is caused by command-line arguments."""

_IN_FILE = re.compile(r"In '(?P<file>[^']*)': ")
_NO_MATCH = "No match in the defaults list"

HIDDEN_GROUPS = ("preset", "debug", "sweep")
"""Groups that are not in the defaults list and must be added with a plus."""


EXTRAS = {
    "joblib": ("workers", "workers"),
    "submitit_slurm": ("slurm", "slurm"),
    "submitit_local": ("processes", "slurm"),
    "ray": ("ray_cluster", "ray"),
}
"""Launchers of plugins that may be missing: Esper's names, and the extra that installs each."""

SIMILAR = 0.8
"""Similarity, from 0 to 1, of a name to one in another section, above which it is suggested: one or two slips."""

_TYPES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_TYPE = re.compile(rf"Value '(?P<value>.*)' of type '.*' could not be converted to (?P<type>{'|'.join(_TYPES)})")
_BOOLEAN = re.compile(r"Value '(?P<value>.*)' is not a valid bool")
_SHAPES = {
    re.compile(r"is not a ListConfig, list or tuple"): "a list, as in [a, b]",
    re.compile(r"Cannot assign .* to Dict\["): "names with values, as in {a: 1}",
    re.compile(r"Incompatible value 'None'"): "a value, not null",
}
_SECTION = re.compile(
    r"(?:Merge error|Invalid type assigned): \w+ is not a subclass of (?P<section>\w+)\. value: (?P<value>.*)"
)
_TWICE = re.compile(r"Multiple values for (?P<group>\S+)\. .*'override \S+: (?P<name>\S+)'")
_TEXT = re.compile(r"Cannot convert '.*' to string: '(?P<value>.*)'")
_MERGING = "Error merging override "
_CHOICE = re.compile(r"Invalid value '(?P<value>.*)', expected one of \[(?P<choices>.*)\]")


class UsageError(CompactHydraException):
    """A request that cannot be met. The message is one line for the user; no traceback is shown.

    A Hydra exception, so that a job of a sweep that fails with it is reported in one line too.
    """


class RunError(CompactHydraException):
    """A run that cannot continue for reasons outside its configuration, such as a full disk. One line, no traceback."""


@contextmanager
def refused(schema: type, located: Callable[[str], str] = str) -> Iterator[None]:
    """Turn exceptions of Hydra, OmegaConf, checks and builders about a request into a :class:`UsageError`.

    Args:
        schema: dataclass of the whole configuration.
        located: function that adds to a message the configuration file that it concerns, if any.
    """
    try:
        yield
    except (UsageError, RunError):
        raise
    except (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
        message = explain(error, schema)
        # A user's code that is found and fails is not the fault of the file that names it.
        code = isinstance(error, UsersCodeError) and not isinstance(error.__cause__, ImportError)
        raise UsageError(message if code else located(message)) from error


def explain(error: BaseException, schema: type) -> str:
    """Describe an error in one line with the offending key, the value and the choices; ``schema`` is the root
    dataclass.
    """
    where = _IN_FILE.match(str(error))
    ours = where and where["file"].partition("/")[0] in HIDDEN_GROUPS and (CONF_DIR / f"{where['file']}.yaml").is_file()
    if where and ours and not _trains(schema):
        return (
            f"{where['file'].replace('/', '=')} is of training; what an evaluation judges follows from checkpoint=<run>"
        )
    by_words = where and where["file"] in (*ROOTS, "hydra/config") and isinstance(error, MissingConfigException)
    if where and not by_words:
        return f"{where['file']}.yaml: {_in_file(error, where['file'], schema)}"
    for cause in _chain(error):
        if isinstance(cause, MissingConfigException):
            return _missing_config(cause)
        if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and cause.full_key:
            return unknown_key(cause.full_key, schema, cause.object_type)
        if isinstance(cause, ValidationError) and (match := _SECTION.search(str(cause))):
            return _no_section(match, schema, cause.full_key)
        if isinstance(cause, ConfigTypeError) and "Cannot merge DictConfig with ListConfig" in str(cause):
            return f"{cause.full_key} is a section and must have keys, got a list"
        if isinstance(cause, ValidationError) and cause.full_key:
            return _bad_value(cause.full_key, _lines(cause)[0], _lines(error))
        if isinstance(cause, OverrideParseException):
            problem = _lines(cause)[-1] if _lines(cause)[0].startswith("Error parsing") else _lines(cause)[0]
            problem = problem.partition(" expecting ")[0]
            if problem.startswith("LexerNoViableAlt"):
                return f"cannot read {cause.override!r}: put quotes around such text, as in \"key='value'\""
            return f"cannot read {cause.override!r}: {problem}; use key=value"
        if isinstance(cause, GrammarParseError | InterpolationResolutionError) and cause.full_key:
            return f"{cause.full_key}: {_lines(cause)[0]}"
        if isinstance(cause, OmegaConfBaseException) and cause is not error:
            return "; ".join([*_lines(error), *_lines(cause)])
    lines = _lines(error) or [type(error).__name__]
    if match := _TWICE.match(lines[0]):
        return f"{match['group']} is named twice: name it once, as {match['group']}={match['name']} or the other"
    for group in HIDDEN_GROUPS:
        if f"Could not override '{group}'" in lines[0]:
            return f"{group} is added with a plus: +{group}=<name>"
    # Hydra's own advice speaks of defaults lists; the first line says what is wrong.
    return "; ".join(line.rstrip(":") for line in lines[:1] + [line for line in lines[1:] if line[:1].isdigit()])


def _trains(schema: type) -> bool:
    """Return whether a root schema is that of training."""
    return any(item.name == "trainer" for item in dataclasses.fields(schema))


def _in_file(error: BaseException, file: str, schema: type) -> str:
    """Describe an error in a configuration file in one line."""
    if isinstance(error, MissingConfigException):
        return _missing_config(error)
    if error.__context__ is None:  # about its defaults list
        text = _lines(error)[0].partition(": ")[2]
        if _NO_MATCH in text:
            roots = " or ".join(ROOTS)
            return f"{text} Is the group misspelt, or this no root configuration, whose list begins with {roots}?"
        return text
    group = file.partition("/")[0]
    if group in HIDDEN_GROUPS and isinstance(error.__context__, ConfigKeyError) and error.__context__.full_key == group:
        return "let its first line be '# @package _global_': without it, its keys are looked for in its own group"
    return explain(error.__context__, schema)


def unreadable(error: Exception) -> str:
    """Describe a configuration file that cannot be read in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        context = f"{error.context}: " if error.context else ""
        return f"line {error.problem_mark.line + 1}: {context}{error.problem}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 text ({error.reason} at byte {error.start})"
    return "; ".join(_lines(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _lines(error: BaseException) -> list[str]:
    text = error.msg if isinstance(error, OmegaConfBaseException) and error.msg else str(error)
    skipped = ("full_key:", "object_type=", "reference_type=", "See https", "Config search path", "provider=")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(skipped)]


def _missing_config(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group and name:
        asked = "" if _IN_FILE.match(str(error)) else "--config-name: "
        return f"{asked}no {name}.yaml among Esper's own files or in the folder of --config-dir"
    if group and not error.options and not group.startswith("hydra"):
        folders = ", ".join(sorted(path.name for path in CONF_DIR.iterdir() if path.is_dir()))
        return f"no folder {group!r} of configuration files, in which to look for {name!r}; Esper's own are {folders}"
    if not group or error.options is None:
        return _lines(error)[0]
    if group == "hydra/launcher" and name in EXTRAS:
        return f"hydra/launcher={EXTRAS[name][0]} needs more packages: pip install '.[{EXTRAS[name][1]}]'"
    choices = ", ".join(error.options) or "none"
    return f"{group}: unknown {name!r}{suggestion(name, error.options)}; choose from {choices}"


def _bad_value(key: str, message: str, context: list[str]) -> str:
    if match := _TYPE.search(message):
        return f"{key} must be {_TYPES[match['type']]}, got {match['value']!r}"
    if match := _CHOICE.search(message):
        choices = match["choices"].split(", ")
        near = suggestion(match["value"], choices)
        return f"{key}: unknown {match['value']!r}{near}; choose from {', '.join(choices)}"
    if match := _TEXT.search(message):
        return f"{key} must be one word, got {match['value']}"
    if match := _BOOLEAN.search(message):
        return f"{key} must be true or false, got {match['value']!r}"
    for pattern, shape in _SHAPES.items():
        if pattern.search(message):
            message = f"must be {shape}"
    override = next((line.removeprefix(_MERGING) for line in context if line.startswith(_MERGING)), "")
    joint = " " if message.startswith("must be") else ": "
    return f"{key}{joint}{message}" + (f" (in {override})" if override else "")


def _no_section(match: re.Match[str], schema: type, key: str | None) -> str:
    root = OmegaConf.structured(schema)
    named = [
        key for key in map(str, root) if getattr(OmegaConf.get_type(root, key), "__name__", "") == match["section"]
    ]
    if not named:  # a host, whose class depends on a choice, or an entry of a dictionary
        return f"{key or 'host'} is a section and must have keys of its own, got {match['value']}"
    return f"{named[0]} is a section and must have keys ({', '.join(map(str, root[named[0]]))}), got {match['value']}"


def unknown_key(key: str, schema: type, section: type | None = None) -> str:
    """Describe an unknown key in one line, with similar known keys.

    Args:
        key: the full key.
        schema: dataclass of the whole configuration.
        section: dataclass of the key's own section, if it depends on a choice.
    """
    parent, _, name = key.rpartition(".")
    root = OmegaConf.structured(schema)
    node = OmegaConf.select(root, parent) if parent else root
    if parent and dataclasses.is_dataclass(section):
        node = OmegaConf.structured(section)
    siblings = list(map(str, node)) if isinstance(node, DictConfig) else []
    near = _near(key, siblings, list(_leaves(root)))
    message = f"unknown key {key!r}{near}"
    if siblings:
        message += f"; {f'keys of {parent}' if parent else 'keys and sections'}: {', '.join(siblings)}"
    if isinstance(node, DictConfig) and OmegaConf.get_type(node) is dict:
        message += f"; to add it, use '+{parent}={{{name}: <value>}}'"
    return message


def _near(key: str, siblings: Sequence[str], keys: Sequence[str]) -> str:
    """Suggest keys for an unknown one: of the same name in another section ("num_envs" for "trainer.num_envs"), of a
    similar one in its own section, or of a very similar one in another.
    """
    name, named = key.rpartition(".")[2], defaultdict(list)
    for full in keys:
        if full != key:
            named[full.rpartition(".")[2]].append(full)
    if name not in named and (slip := suggestion(name, siblings)):
        return slip
    match = difflib.get_close_matches(name, list(named), n=1, cutoff=SIMILAR)
    return f" (did you mean {' or '.join(map(repr, named[match[0]]))}?)" if match else ""


def _leaves(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, node):
        full = f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _leaves(node[key], f"{full}.")
        else:
            yield full
