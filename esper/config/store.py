"""The one place where a composed Hydra configuration becomes dataclasses, and back to YAML."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
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

from esper.config.errors import unknown_key
from esper.config.evaluate import EvaluateConfig
from esper.config.hosts import HOST_SCHEMAS, HostConfig
from esper.config.hydra_private import ConfigLoaderImpl
from esper.config.naming import as_typed, sweep_name
from esper.config.paths import CONF_DIR
from esper.config.plugins import activate
from esper.config.root import Config

Schema = TypeVar("Schema")
"""Dataclass of a whole configuration."""

VERSION_BASE = "1.3"
CONFIG_NAME = "config"
WIDTH = "observation.num_features"

# Once per process, so that the folder that was checked before a run is the folder that the run gets.
# The letters behind it set apart what starts in the same second.
_STARTED = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _run_name(*, _root_: DictConfig) -> str:
    """``<preset, task or evaluate>-seed<seed>-<start time>[-<job number>]``."""
    job = OmegaConf.select(_hydra(), "job.num", throw_on_missing=False)
    return f"{_label(_root_)}-seed{_root_.seed}-{_STARTED}" + ("" if job is None else f"-{job}")


def _sweep_name(*, _root_: DictConfig) -> str:
    """Of a sweep's folder: the same for the same command."""
    hydra = _hydra()
    preset = OmegaConf.select(hydra, "runtime.choices.sweep")
    words = OmegaConf.select(hydra, "overrides.task") or []
    return sweep_name(_label(_root_), preset, list(words))


def _group(*, _root_: DictConfig) -> str:
    """What a run belongs to: its sweep, or its preset, task or evaluations."""
    hydra = _hydra()
    if OmegaConf.select(hydra, "mode") is RunMode.MULTIRUN:
        return Path(hydra.sweep.dir).name
    return _label(_root_)


def _hydra() -> DictConfig:
    return cast(DictConfig, HydraConfig.get()) if HydraConfig.initialized() else OmegaConf.create()


def _label(root: DictConfig) -> str:
    """Preset, task, or evaluate."""
    label = OmegaConf.select(_hydra(), "runtime.choices.preset") or OmegaConf.select(root, "task.name") or "evaluate"
    label = "+".join(label) if isinstance(label, ListConfig) else str(label)
    return label.replace("/", "_")  # of a preset in a folder of presets


def register() -> None:
    """Make the schemas and the names of runs and groups known to Hydra."""
    schema = OmegaConf.structured(Config)
    schema.host = OmegaConf.structured(HostConfig)  # a default of one family would take no other's keys
    ConfigStore.instance().store(name="schema", node=schema)
    ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)
    for family, host in HOST_SCHEMAS.items():
        ConfigStore.instance().store(group="host", name=family, node=host)
    OmegaConf.register_new_resolver("esper.run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("esper.sweep_name", _sweep_name, replace=True)
    OmegaConf.register_new_resolver("esper.group", _group, replace=True)


def load(cfg: DictConfig, schema: type[Schema]) -> Schema:
    """Turn a composed configuration into validated dataclasses.

    Raises:
        ValueError: a value is missing, out of range, or contradicts another; names the key in full.
    """
    _check_keys(cfg, schema)
    if "plugins" in cfg:
        activate(cfg.plugins)
    return cast(Schema, OmegaConf.to_object(cfg))


def _check_keys(node: DictConfig, schema: type, prefix: str = "") -> None:
    """Refuse keys that a dataclass does not have ("+key=value" gets past Hydra's own check) and missing values."""
    own = OmegaConf.get_type(node)
    known = {item.name for item in dataclasses.fields(own)} if dataclasses.is_dataclass(own) else set(node)
    for key in map(str, node):
        full = f"{prefix}{key}"
        if key not in known:
            raise ValueError(unknown_key(full, schema, own))
        if OmegaConf.is_interpolation(node, key):  # resolves to something that is checked where it stands
            continue
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"no value for {full}: say {full}=<value>")
        if isinstance(node[key], DictConfig):
            _check_keys(node[key], schema, f"{full}.")


def compose(*overrides: str) -> Config:
    """Compose and load a configuration outside of an entry point: ``compose("+preset=digits", "seed=1")``."""
    with initialize_config_dir(str(CONF_DIR), version_base=VERSION_BASE):
        return load(hydra_compose(CONFIG_NAME, overrides=list(overrides)), Config)


def to_plain(config: Config | EvaluateConfig) -> dict[str, Any]:
    """Nested dictionaries of plain Python values, enums as their names."""
    return cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def to_yaml(config: Config | EvaluateConfig) -> str:
    """The effective configuration as YAML; composing it over the schema gives an equal configuration."""
    return OmegaConf.to_yaml(OmegaConf.create(to_plain(config)))


def from_yaml(text: str, schema: type[Schema]) -> Schema:
    """The configuration that :func:`to_yaml` wrote."""
    return load(_over(schema, text), schema)


def _over(schema: type[Schema], text: str) -> DictConfig:
    """A schema, the host's that of its family, with what :func:`to_yaml` wrote."""
    root, said = OmegaConf.structured(schema), _read(text)
    if OmegaConf.select(said, WIDTH) is not None:  # of the keys as they are now: words may change them
        OmegaConf.update(said, WIDTH, None)
    family = OmegaConf.select(said, "host.name")
    if family in HOST_SCHEMAS:
        root.host = OmegaConf.structured(HOST_SCHEMAS[family])
    return cast(DictConfig, OmegaConf.merge(root, said))


def _read(text: str) -> DictConfig:
    said = OmegaConf.create(text)
    if not isinstance(said, DictConfig):
        raise ValueError("a configuration has keys and values")
    return said


def plain_yaml(text: str) -> dict[str, Any]:
    """What :func:`to_yaml` wrote as plain values, with the defaults of keys that were not there yet; not checked."""
    return cast(dict[str, Any], OmegaConf.to_container(_over(Config, text), enum_to_str=True))


def with_words(text: str, schema: type[Schema], words: Sequence[Override]) -> Schema:
    """The configuration that :func:`to_yaml` wrote, changed by words of the command line."""
    cfg = _over(schema, text)
    ConfigLoaderImpl._apply_overrides_to_config(list(words), cfg)
    return load(cfg, schema)


def from_plain(plain: dict[str, Any]) -> Config:
    """The configuration that :func:`to_plain` took apart, as checkpoints hold it."""
    return from_yaml(OmegaConf.to_yaml(OmegaConf.create(plain)), Config)


def summary(config: Config | EvaluateConfig) -> str:
    """The effective configuration on one line per section, for the start of a run's output."""
    plain = to_plain(config)
    root = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    sections = {"run": root, **{key: value for key, value in plain.items() if isinstance(value, dict)}}
    width = max(map(len, sections))
    return "\n".join(
        f"{section:<{width}}  " + " ".join(f"{key}={as_typed(value)}" for key, value in values.items())
        for section, values in sections.items()
    )
