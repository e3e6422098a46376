"""Conversion of a composed Hydra configuration to dataclasses, in one place, and back to YAML."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from esper.config.errors import UsageError, refused, unknown_key
from esper.config.evaluate import EvaluateConfig
from esper.config.hosts import HOST_GROUP, HostConfig, schema_of
from esper.config.hydra_private import ConfigLoaderImpl
from esper.config.naming import sweep_name
from esper.config.paths import CONF_DIR
from esper.config.plugins import activate
from esper.config.root import Config

Schema = TypeVar("Schema")
"""Dataclass of a whole configuration."""

VERSION_BASE = "1.3"
CONFIG_NAME = "config"
WIDTH = "observation.num_features"

# Once per process, so that the folder that was checked before a run is the folder that the run gets.
# The random suffix distinguishes runs that start in the same second.
_STARTED = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

_own_record: ContextVar[DictConfig | None] = ContextVar("own_record", default=None)
"""Record of choices of a configuration that is composed from Python: Hydra's is of the command that runs, if any."""


def _run_name(*, _root_: DictConfig) -> str:
    """Return the name of a run, ``<preset, task or evaluate>-seed<seed>-<start time>[-<job number>]``."""
    job = OmegaConf.select(_hydra(), "job.num", throw_on_missing=False)
    return f"{_label(_root_)}-seed{_root_.seed}-{_STARTED}" + ("" if job is None else f"-{job}")


def _sweep_name(*, _root_: DictConfig) -> str:
    """Return the name of a sweep's folder, the same for the same command."""
    hydra = _hydra()
    preset = OmegaConf.select(hydra, "runtime.choices.sweep")
    words = OmegaConf.select(hydra, "overrides.task") or []
    return sweep_name(_label(_root_), preset, list(words))


def _group(*, _root_: DictConfig) -> str:
    """Return the group of a run: its sweep, or its preset, task or evaluations."""
    hydra = _hydra()
    if OmegaConf.select(hydra, "mode") is RunMode.MULTIRUN:
        return Path(hydra.sweep.dir).name
    return _label(_root_)


def _hydra() -> DictConfig:
    """Return the record of how the present configuration is composed."""
    if (own := _own_record.get()) is not None:
        return own
    return cast(DictConfig, HydraConfig.get()) if HydraConfig.initialized() else OmegaConf.create()


def _label(root: DictConfig) -> str:
    """Return preset, task, or evaluate."""
    preset = OmegaConf.select(_hydra(), "runtime.choices.preset")
    label = preset or OmegaConf.select(root, "task.name") or "evaluate"
    label = "+".join(label) if isinstance(label, ListConfig) else str(label)
    return label.replace("/", "_")  # of a preset in a folder of presets


_SCHEMA_NODES: dict[tuple[type, type[HostConfig] | None], DictConfig] = {}
"""Nodes of root schemas by the schema of their host; see :func:`_schema_node`."""


def register() -> None:
    """Register the schemas, and the resolvers for names of runs and groups, with Hydra."""
    schema = OmegaConf.structured(Config)
    schema.host = OmegaConf.structured(HostConfig)  # a default of one kind of host would not accept another's keys
    ConfigStore.instance().store(name="schema", node=schema)
    ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)
    for name, host in HOST_GROUP.items():
        ConfigStore.instance().store(group="host", name=name, node=host)
    OmegaConf.register_new_resolver("esper.run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("esper.sweep_name", _sweep_name, replace=True)
    OmegaConf.register_new_resolver("esper.group", _group, replace=True)


def load(cfg: DictConfig, schema: type[Schema]) -> Schema:
    """Convert a composed configuration to validated dataclasses.

    Raises:
        ValueError: a value is missing, out of range, or contradicts another; names the full key.
    """
    _check_keys(cfg, schema)
    if "plugins" in cfg:
        activate(cfg.plugins)
    return cast(Schema, OmegaConf.to_object(cfg))


def _check_keys(node: DictConfig, schema: type, prefix: str = "") -> None:
    """Refuse unknown keys ("+key=value" gets past Hydra's own check) and missing values."""
    own = OmegaConf.get_type(node)
    known = {item.name for item in dataclasses.fields(own)} if dataclasses.is_dataclass(own) else set(node)
    for key in map(str, node):
        full = f"{prefix}{key}"
        if key not in known:
            raise ValueError(unknown_key(full, schema, own))
        if OmegaConf.is_interpolation(node, key):  # resolves to a value that is checked under its own key
            continue
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"no value for {full}: use {full}=<value>")
        if isinstance(node[key], DictConfig):
            _check_keys(node[key], schema, f"{full}.")


def compose(*overrides: str) -> Config:
    """Compose and load a configuration outside an entry point: ``compose("+preset=digits", "seed=1")``.

    Raises:
        UsageError: an argument is not understood, or names an unknown key, choice or value; in one line.
    """
    for word in overrides:
        if not isinstance(word, str):
            raise UsageError(
                f"esper.compose takes words such as '+preset=smoke', got {_kind(word)}: each as a text of its own"
            )
    presets = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("preset=")]
    preset = [name.strip() for name in presets[-1].strip("[]").split(",")] if presets else None
    token = _own_record.set(OmegaConf.create({"runtime": {"choices": {"preset": preset}}}))
    try:
        with refused(Config), initialize_config_dir(str(CONF_DIR), version_base=VERSION_BASE):
            return load(hydra_compose(CONFIG_NAME, overrides=list(overrides)), Config)
    finally:
        _own_record.reset(token)


def check_config(given: object, function: str) -> None:
    """Refuse what is no configuration of training, for a function that takes one from Python.

    Raises:
        UsageError: names the function, what it got, and :func:`compose`.
    """
    if not isinstance(given, Config):
        words = repr(given) if isinstance(given, str) else "'+preset=smoke'"
        raise UsageError(
            f"{function} takes a configuration, got {_kind(given)}: make one with esper.compose, as in "
            f"{function}(esper.compose({words}))"
        )


def _kind(given: object) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return repr(given) if given is None or isinstance(given, str) else f"a {type(given).__name__}"


def to_plain(config: Config | EvaluateConfig) -> dict[str, Any]:
    """Convert to nested dictionaries of plain Python values, enums as their names."""
    return cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def to_yaml(config: Config | EvaluateConfig) -> str:
    """Write the effective configuration as YAML; composing it over the schema gives an equal configuration."""
    return OmegaConf.to_yaml(OmegaConf.create(to_plain(config)))


def from_yaml(text: str, schema: type[Schema]) -> Schema:
    """Load a configuration written by :func:`to_yaml`."""
    return load(_over(schema, _read(text)), schema)


def _over(schema: type[Schema], said: DictConfig) -> DictConfig:
    """Merge a saved configuration over its schema, with that of its kind of host."""
    if OmegaConf.select(said, WIDTH) is not None:  # of the present keys, which arguments may change
        OmegaConf.update(said, WIDTH, None)
    host = OmegaConf.select(said, "host.name")
    return cast(DictConfig, OmegaConf.merge(_schema_node(schema, None if host is None else schema_of(host)), said))


def _schema_node(schema: type, host: type[HostConfig] | None) -> DictConfig:
    """Return a schema as a node, made once since that takes longer than to merge over it: not to be changed."""
    if (schema, host) not in _SCHEMA_NODES:
        root = OmegaConf.structured(schema)
        if host is not None:
            root.host = OmegaConf.structured(host)
        _SCHEMA_NODES[schema, host] = cast(DictConfig, root)
    return _SCHEMA_NODES[schema, host]


def _read(text: str) -> DictConfig:
    said = OmegaConf.create(text)
    if not isinstance(said, DictConfig):
        raise ValueError("a configuration has keys and values")
    return said


def plain_yaml(text: str) -> dict[str, Any]:
    """Read the output of :func:`to_yaml` as plain values, with defaults for newer keys; not checked."""
    return cast(dict[str, Any], OmegaConf.to_container(_over(Config, _read(text)), enum_to_str=True))


def with_words(text: str, schema: type[Schema], words: Sequence[Override]) -> Schema:
    """Load a configuration written by :func:`to_yaml`, changed by arguments of the command line."""
    cfg = _over(schema, _read(text))
    ConfigLoaderImpl._apply_overrides_to_config(list(words), cfg)
    return load(cfg, schema)


def from_words(words: Sequence[str], schema: type[Schema]) -> Schema:
    """Load a configuration from ``key=value`` arguments alone."""
    return load(_over(schema, OmegaConf.from_dotlist(list(words))), schema)


def from_plain(plain: dict[str, Any], schema: type[Schema]) -> Schema:
    """Load a configuration from the plain values of :func:`to_plain`, as checkpoints hold them."""
    return load(_over(schema, OmegaConf.create(plain)), schema)
