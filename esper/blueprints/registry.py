"""Which blueprints each family of hosts has.

A builder takes the number of channels at a place and returns a module that keeps the shape of its input (``[B, C, H,
W]`` for the family ``cnn``, ``[B, T, C]`` for ``transformer``), is the identity at birth, and is traceable by
``torch.fx``. It raises ``ValueError`` for a width that it cannot serve. Users' modules are held to that by
:mod:`esper.blueprints.contract`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from esper.growth.actions import BLUEPRINT_IDS
from esper.growth.layouts import Layout, layout_of
from esper.runtime.rng import global_streams
from esper.runtime.user_code import named, of_the_user

Builder = Callable[[int], nn.Module]

BLUEPRINTS: dict[str, dict[str, Builder]] = {}
"""Host family to blueprint id to builder. Change it through :func:`register`."""

CUSTOM_IDS: list[str] = []
"""Ids that are not built in, in index order."""

_PROBE_SIZE = 4
_ID = re.compile(r"\w[\w.-]*")


def register(family: str, blueprint_id: str, builder: Builder) -> None:
    """Offer a blueprint to a host family. A new id gets the next free index of the blueprint head.

    A function that is defined anew, as when its module is run again, takes the place of its former self.

    Raises:
        ValueError: unknown family, an id that is no word, no function, or it already has another builder under that id.
    """
    layout_of(family)
    if not isinstance(blueprint_id, str) or not _ID.fullmatch(blueprint_id):
        raise ValueError(f"blueprint id {blueprint_id!r}: choose letters, digits, dots, dashes and underscores")
    if not callable(builder):
        raise ValueError(f"blueprint {blueprint_id!r}: its builder must be a function of a width, got {builder!r}")
    known = BLUEPRINTS.setdefault(family, {})
    there = known.get(blueprint_id, builder)
    if not _same(there, builder):
        raise ValueError(
            f"{family} hosts already have a blueprint {blueprint_id!r}, built by {named(there)}; choose another id for "
            f"that of {named(builder)}"
        )
    known[blueprint_id] = builder
    if blueprint_id not in BLUEPRINT_IDS and blueprint_id not in CUSTOM_IDS:
        CUSTOM_IDS.append(blueprint_id)


def _same(one: Builder, other: Builder) -> bool:
    """Tell whether two builders are one, or one function of a module that was run twice."""
    name = getattr(one, "__qualname__", "<none>")
    return one is other or (named(one) == named(other) and "<" not in name and hasattr(other, "__qualname__"))


def blueprint_ids() -> tuple[str, ...]:
    """All blueprint ids in index order: the built-in ones, then users' own in order of registration."""
    return (*BLUEPRINT_IDS, *CUSTOM_IDS)


def build_blueprint(family: str, blueprint_id: str, channels: int) -> nn.Module:
    """Build a seed module for a place with ``channels`` channels.

    Parameters still have to be initialised from a generator: :func:`esper.hosts.init.reset_parameters`.

    Raises:
        ValueError: unknown family or id, or a width that the blueprint cannot serve.
    """
    return _builders(family, blueprint_id)[blueprint_id](channels)


def _builders(family: str, blueprint_id: str | None = None) -> dict[str, Builder]:
    layout_of(family)
    known = BLUEPRINTS[family]
    if blueprint_id is not None and blueprint_id not in known:
        raise ValueError(f"unknown blueprint {blueprint_id!r} for {family} hosts; known: {', '.join(known)}")
    return known


def compatible(sites: Iterable[tuple[str, int]]) -> Tensor:
    """Which blueprints fit which places: registered for the family, serves the width, keeps the shape.

    Args:
        sites: family and width of each slot's place, in slot order.

    Returns:
        ``bool [S, B]``, B in the order of :func:`blueprint_ids`.

    Raises:
        ValueError: unknown family.
    """
    places, rows = list(sites), {}
    for family, channels in dict.fromkeys(places):
        known, layout = _builders(family), layout_of(family)
        rows[family, channels] = [name in known and _fits(known[name], channels, layout) for name in blueprint_ids()]
    table = torch.tensor([rows[place] for place in places], dtype=torch.bool)
    return table.reshape(len(places), len(blueprint_ids()))


def _fits(builder: Builder, channels: int, layout: Layout) -> bool:
    """Shape probe that leaves no trace in the random numbers of others."""
    probe = torch.zeros(layout.probe(channels, _PROBE_SIZE))
    with torch.no_grad(), global_streams():
        try:
            with of_the_user("blueprint"):
                result = builder(channels)(probe)
        except ValueError:
            # A user's module may fail in any way; what a run may grow is checked, and refused with the reason, in
            # esper.blueprints.contract.
            return False
    return isinstance(result, Tensor) and result.shape == probe.shape
