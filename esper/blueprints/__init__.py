"""Blueprints: kinds of seed module, one registry per host family.

Adding one is a module with a builder and a line in the family's table; users call :func:`register` from their own
package.
"""

from __future__ import annotations

from esper.blueprints import cnn, transformer
from esper.blueprints.registry import BLUEPRINTS, blueprint_ids, build_blueprint, compatible, register

for _family, _builders in (("cnn", cnn.BUILDERS), ("transformer", transformer.BUILDERS)):
    for _blueprint_id, _builder in _builders.items():
        register(_family, _blueprint_id, _builder)

__all__ = ["BLUEPRINTS", "blueprint_ids", "build_blueprint", "compatible", "register"]
