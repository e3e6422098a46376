"""Plugins, users' own modules, and their registrations, which are visible only to configurations that name them.

One process may load many configurations, as when it plans a sweep. The registries hold Esper's own entries, those
registered outside plugins, and those of the plugins of the configuration that was loaded last.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from esper.runtime.registry import Registration, recording
from esper.runtime.user_code import of_the_user


@dataclass(slots=True)
class _Plugin:
    """Registrations made, and modules of its own package loaded, by the import of a plugin."""

    name: str
    registrations: list[Registration[Any]] = field(default_factory=list)
    modules: dict[str, ModuleType] = field(default_factory=dict)


_active: list[_Plugin] = []
_seen: dict[str, _Plugin] = {}
"""Plugins imported by this process; each runs once, and is activated again when a configuration names it again."""


def activate(names: Sequence[str]) -> None:
    """Import plugins, so that other keys can name what they register; withdraw the entries of all other plugins.

    Raises:
        ValueError: a module cannot be imported, or two of them register different things under one name. Then no
            plugin is active.
    """
    if [plugin.name for plugin in _active] == list(names):
        return
    _withdraw_all()
    try:
        for name in names:
            if name in _seen:
                _take_up(_seen[name])
            else:
                _seen[name] = _imported(name)
            _active.append(_seen[name])
    except BaseException:
        _withdraw_all()
        raise


def _imported(name: str) -> _Plugin:
    """Import a plugin for the first time."""
    plugin, before, package = _Plugin(name), set(sys.modules), name.partition(".")[0]
    try:
        with of_the_user(f"plugins: cannot import {name!r}"), recording() as plugin.registrations:
            importlib.import_module(name)
    except BaseException:
        _forget(module for module in set(sys.modules) - before if module.partition(".")[0] == package)
        raise
    new = [module for module in sys.modules if module not in before and module.partition(".")[0] == package]
    plugin.modules = {module: sys.modules[module] for module in new}
    return plugin


def _withdraw_all() -> None:
    """Undo all plugins' registrations and forget their modules, so that a plugin which imports another runs it
    again.
    """
    while _active:
        plugin = _active.pop()
        for registration in reversed(plugin.registrations):
            registration.undo()
        _forget(plugin.modules)


def _forget(modules: Iterable[str]) -> None:
    for name in list(modules):
        sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)


def _take_up(plugin: _Plugin) -> None:
    """Repeat the registrations that a plugin made when it was imported."""
    try:
        with recording() as registrations:
            for registration in plugin.registrations:
                registration.again()
    except ValueError as error:
        raise ValueError(f"plugins: {error}") from error
    plugin.registrations = registrations
    for name, module in plugin.modules.items():
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
