"""Mapping strategies: one registry, one seam (:class:`Mapping`)."""

from __future__ import annotations

from collections.abc import Callable

from esper.population.mapping.base import Features, Index, Mapping, Program, is_all
from esper.population.mapping.grouped import GroupedMapping
from esper.population.mapping.loop import LoopMapping
from esper.population.mapping.matmul import MatmulMapping
from esper.population.mapping.vmap import VmapMapping

MAPPINGS: dict[str, Callable[[], Mapping]] = {
    "loop": LoopMapping,
    "vmap": VmapMapping,
    "grouped": GroupedMapping,
    "matmul": MatmulMapping,
}


def build_mapping(name: str) -> Mapping:
    """The mapping of that name; raises ``ValueError`` naming the choices."""
    if name not in MAPPINGS:
        raise ValueError(f"unknown mapping {name!r}; choose one of {', '.join(MAPPINGS)}")
    return MAPPINGS[name]()


__all__ = ["MAPPINGS", "Features", "Index", "Mapping", "Program", "build_mapping", "is_all"]
