"""Users' own modules, and what they register: it belongs to the configurations that name them, and to no others.

One process may see many configurations, as when it plans a sweep. The registries hold Esper's own entries, those that
were made outside of plugins, and those of the plugins of the configuration that was loaded last.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from esper.runtime.user_code import named, of_the_user

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A registry's entry: what a plugin has put there, and what was there before."""

    registry: dict[str, Any]
    key: str
    before: Any
    after: Any


@dataclass(slots=True)
class _Plugin:
    """Entries, ids of blueprints and modules of its own package that the import of a module has brought."""

    name: str
    entries: list[_Entry] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    modules: dict[str, ModuleType] = field(default_factory=dict)


_active: list[_Plugin] = []
_seen: dict[str, _Plugin] = {}
"""Plugins of this process: each is run once, and taken up again when a configuration names it again."""


def activate(names: Sequence[str]) -> None:
    """Import users' modules, so that what they register can be named by other keys; others' entries are withdrawn.

    Raises:
        ValueError: a module cannot be imported, or two of them register different things under one name. Then no
            plugin is active.
    """
    if [plugin.name for plugin in _active] == list(names):
        return
    for plugin in reversed(_active):
        _withdraw(plugin)
    _active.clear()
    try:
        for name in names:
            if name in _seen:
                _take_up(_seen[name])
            else:
                _seen[name] = _imported(name)
            _active.append(_seen[name])
    except BaseException:
        for plugin in reversed(_active):
            _withdraw(plugin)
        _active.clear()
        raise


def _registries() -> list[dict[str, Any]]:
    # Imported here: they build on much that configuration itself must not need.
    from esper.blueprints import BLUEPRINTS
    from esper.controllers import CONTROLLERS
    from esper.envs.rewards import REWARDS
    from esper.hosts import HOSTS, READS
    from esper.tasks import TASKS

    return [*BLUEPRINTS.values(), CONTROLLERS, REWARDS, HOSTS, READS, TASKS]


def _ids() -> list[str]:
    from esper.blueprints.registry import CUSTOM_IDS

    return CUSTOM_IDS


def _imported(name: str) -> _Plugin:
    """Run a module for the first time."""
    plugin, registries = _Plugin(name), _registries()
    before, ids, modules = [dict(registry) for registry in registries], list(_ids()), set(sys.modules)

    def take_stock() -> None:
        for registry, old in zip(registries, before, strict=True):
            changed = [(key, value) for key, value in registry.items() if old.get(key, _NOTHING) is not value]
            plugin.entries.extend(_Entry(registry, key, old.get(key, _NOTHING), value) for key, value in changed)
        plugin.ids.extend(blueprint_id for blueprint_id in _ids() if blueprint_id not in ids)
        package = name.partition(".")[0]
        new = [module for module in sys.modules if module not in modules and module.partition(".")[0] == package]
        plugin.modules.update({module: sys.modules[module] for module in new})

    try:
        with of_the_user(f"plugins: cannot import {name!r}"):
            importlib.import_module(name)
    except BaseException:
        take_stock()
        _withdraw(plugin)
        raise
    take_stock()
    return plugin


def _withdraw(plugin: _Plugin) -> None:
    """As if the module had never been imported, so that another that builds on it runs it anew."""
    for entry in reversed(plugin.entries):
        if entry.before is _NOTHING:
            entry.registry.pop(entry.key, None)
        else:
            entry.registry[entry.key] = entry.before
    _ids()[:] = [blueprint_id for blueprint_id in _ids() if blueprint_id not in plugin.ids]
    for name in plugin.modules:
        sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)


def _take_up(plugin: _Plugin) -> None:
    for entry in plugin.entries:
        there = entry.registry.get(entry.key, _NOTHING)
        if there not in (_NOTHING, entry.before, entry.after) and named(there) != named(entry.after):
            raise ValueError(f"plugins: {named(there)} and {named(entry.after)} are both registered as {entry.key!r}")
    for entry in plugin.entries:
        entry.registry[entry.key] = entry.after
    _ids().extend(blueprint_id for blueprint_id in plugin.ids if blueprint_id not in _ids())
    for name, module in plugin.modules.items():
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
