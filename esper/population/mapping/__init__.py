"""Mapping strategies, all behind one interface (:class:`Mapping`), in one registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from esper.population.mapping.base import Features, Index, Mapping, Program, is_all
from esper.population.mapping.grouped import GroupedMapping
from esper.population.mapping.loop import LoopMapping
from esper.population.mapping.matmul import MatmulMapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.mapping.vmap import VmapMapping

MAPPINGS: dict[str, Callable[[], Mapping]] = {
    "loop": LoopMapping,
    "vmap": VmapMapping,
    "grouped": GroupedMapping,
    "matmul": MatmulMapping,
}

COMPILED_MAPPINGS: dict[str, Callable[[], Mapping]] = {
    f"{kind.name}{COMPILED_SUFFIX}": partial(kind, compiles=True)
    for kind in (VmapMapping, GroupedMapping, MatmulMapping)
}
"""Stacked mappings that compile the host's segments, which takes up to a minute before the first step."""


def build_mapping(name: str) -> Mapping:
    """Build the mapping with a name; raise ``ValueError`` with the choices."""
    known = MAPPINGS | COMPILED_MAPPINGS
    if name not in known:
        raise ValueError(f"unknown mapping {name!r}; choose one of {', '.join(known)}")
    return known[name]()


__all__ = ["COMPILED_MAPPINGS", "MAPPINGS", "Features", "Index", "Mapping", "Program", "build_mapping", "is_all"]
