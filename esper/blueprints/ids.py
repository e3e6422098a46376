"""Ids of all blueprints of all families, in the order of the policy's blueprint head."""

from __future__ import annotations

from esper.growth.actions import BLUEPRINT_IDS
from esper.runtime.registry import Registry

INDEX: Registry[str] = Registry(
    "blueprint", dict(zip(BLUEPRINT_IDS, BLUEPRINT_IDS, strict=True)), functions=lambda _: ()
)
"""All blueprint ids of all families, in index order."""


def blueprint_ids() -> tuple[str, ...]:
    """Return all blueprint ids in index order: the built-in ones, then users' own in order of registration."""
    return tuple(INDEX)
