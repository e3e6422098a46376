"""Blueprints: kinds of seed module, in one registry per host family.

To add one, write a module with a builder and add a line to the family's table, or call :func:`register_blueprint` from
your own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.blueprints.ids import blueprint_ids
from esper.runtime.lazy import names_of

if TYPE_CHECKING:
    from esper.blueprints.registry import BLUEPRINTS, build_blueprint, compatible, register_blueprint
else:
    __getattr__ = names_of(
        __name__, {"registry": ("BLUEPRINTS", "build_blueprint", "compatible", "register_blueprint")}
    )

__all__ = ["BLUEPRINTS", "blueprint_ids", "build_blueprint", "compatible", "register_blueprint"]
