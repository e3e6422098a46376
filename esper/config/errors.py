"""Errors of use in one line: what was asked, and what there is to choose from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from hydra.errors import CompactHydraException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from esper.config.checks import suggestion

HIDDEN_GROUPS = ("preset", "debug", "sweep")
"""Groups that are not in the defaults list and are added with a plus."""


EXTRAS = {
    "joblib": ("workers", "workers"),
    "submitit_slurm": ("slurm", "slurm"),
    "submitit_local": ("processes", "slurm"),
    "ray": ("ray_cluster", "ray"),
}
"""Launchers of plugins that may not be installed: the names that we give them, and the extra that installs them."""

_TYPES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_TYPE = re.compile(rf"Value '(?P<value>.*)' of type '.*' could not be converted to (?P<type>{'|'.join(_TYPES)})")
_TEXT = re.compile(r"Cannot convert '.*' to string: '(?P<value>.*)'")
_MERGING = "Error merging override "
_CHOICE = re.compile(r"Invalid value '(?P<value>.*)', expected one of \[(?P<choices>.*)\]")


class UsageError(CompactHydraException):
    """A request that cannot be met. The message is one line for the user; no traceback is shown.

    A Hydra exception, so that a job of a sweep that fails with it is reported in one line too.
    """


class RunError(CompactHydraException):
    """A run that cannot go on for reasons outside of its configuration, such as a full disk. One line, no traceback."""


@contextmanager
def refused(schema: type) -> Iterator[None]:
    """Turn what Hydra, OmegaConf, validation and builders raise about a request into a :class:`UsageError`.

    Args:
        schema: dataclass of the whole configuration.
    """
    try:
        yield
    except UsageError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
        raise UsageError(explain(error, schema)) from error


def explain(error: BaseException, schema: type) -> str:
    """One line that names the offending key and value, and the choices; ``schema`` is of the whole configuration."""
    for cause in _chain(error):
        if isinstance(cause, MissingConfigException):
            return _missing_config(cause)
        if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and cause.full_key:
            return unknown_key(cause.full_key, schema, cause.object_type)
        if isinstance(cause, ValidationError) and cause.full_key:
            return _bad_value(cause.full_key, _lines(cause)[0], _lines(error))
        if isinstance(cause, OverrideParseException):
            problem = _lines(cause)[-1] if _lines(cause)[0].startswith("Error parsing") else _lines(cause)[0]
            problem = problem.partition(" expecting ")[0]
            return f"cannot read {cause.override!r}: {problem}; say key=value"
        if isinstance(cause, OmegaConfBaseException) and cause is not error:
            return "; ".join([*_lines(error), *_lines(cause)])
    lines = _lines(error) or [type(error).__name__]
    for group in HIDDEN_GROUPS:
        if f"Could not override '{group}'" in lines[0]:
            return f"{group} is added with a plus: +{group}=<name>"
    # Hydra's own advice speaks of defaults lists; the first line says what is wrong.
    return "; ".join(line.rstrip(":") for line in lines[:1] + [line for line in lines[1:] if line[:1].isdigit()])


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
        return f"--config-name: no {name}.yaml among Esper's own files or in the folder of --config-dir"
    if not group or error.options is None:
        return _lines(error)[0]
    if group == "hydra/launcher" and name in EXTRAS:
        return f"hydra/launcher={EXTRAS[name][0]} needs more packages: pip install 'esper[{EXTRAS[name][1]}]'"
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
    override = next((line.removeprefix(_MERGING) for line in context if line.startswith(_MERGING)), "")
    return f"{key}: {message}" + (f" (in {override})" if override else "")


def unknown_key(key: str, schema: type, section: type | None = None) -> str:
    """One line about a key that the schema, a dataclass, does not have.

    Args:
        key: in full.
        schema: of the whole configuration.
        section: dataclass of the key's own section, where it depends on a choice.
    """
    parent, _, name = key.rpartition(".")
    root = OmegaConf.structured(schema)
    node = OmegaConf.select(root, parent) if parent else root
    if parent and dataclasses.is_dataclass(section):
        node = OmegaConf.structured(section)
    siblings = list(map(str, node)) if isinstance(node, DictConfig) else []
    # First the right name in the wrong section ("num_envs" for "trainer.num_envs"), then a slip of the keyboard.
    elsewhere = [full for full in _leaves(root) if full.rpartition(".")[2] == name and full != key]
    near = f" (did you mean {' or '.join(map(repr, elsewhere))}?)" if elsewhere else suggestion(name, siblings)
    message = f"unknown key {key!r}{near}"
    if siblings:
        message += f"; {f'keys of {parent}' if parent else 'keys and sections'}: {', '.join(siblings)}"
    if isinstance(node, DictConfig) and OmegaConf.get_type(node) is dict:
        message += f"; to add it, say '+{parent}={{{name}: <value>}}'"
    return message


def _leaves(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, node):
        full = f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _leaves(node[key], f"{full}.")
        else:
            yield full
