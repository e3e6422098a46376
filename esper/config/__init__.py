"""Configuration: dataclasses own type, default, documentation and checks; YAML in ``conf/`` holds choices."""

from __future__ import annotations

from esper.config.errors import UsageError
from esper.config.paths import CONF_DIR
from esper.config.root import Config
from esper.config.store import check_config, compose, from_plain, from_yaml, load, register, to_plain, to_yaml

register()

__all__ = [
    "CONF_DIR",
    "Config",
    "UsageError",
    "check_config",
    "compose",
    "from_plain",
    "from_yaml",
    "load",
    "to_plain",
    "to_yaml",
]
