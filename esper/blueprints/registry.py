"""Registry of blueprints by host family.

A builder takes the number of channels at a place and returns a module that keeps the shape of its input (``[B, C, H,
W]`` for the family ``cnn``, ``[B, T, C]`` for ``transformer``, ``[B, C]`` for ``mlp``), is the identity at birth, and
is traceable by ``torch.fx``. It raises ``ValueError`` for a width that it does not support.
:mod:`esper.blueprints.contract` checks users' blueprints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from esper.blueprints import cnn, transformer, vectors
from esper.blueprints.ids import INDEX, blueprint_ids
from esper.growth.actions import BLUEPRINT_IDS
from esper.growth.layouts import Layout, layout_of
from esper.runtime.registry import Registry
from esper.runtime.rng import global_streams
from esper.runtime.user_code import of_the_user

Builder = Callable[[int], nn.Module]

BLUEPRINTS: dict[str, Registry[Builder]] = {
    "cnn": Registry("cnn blueprint", cnn.BUILDERS),
    "transformer": Registry("transformer blueprint", transformer.BUILDERS),
    "mlp": Registry("mlp blueprint", vectors.BUILDERS),
}
"""Builders of each host family, by blueprint id."""

_UNNAMED = sorted({name for family in BLUEPRINTS.values() for name in family} - set(BLUEPRINT_IDS))
assert not _UNNAMED, f"built in, but no member of Blueprint in growth/actions.py: {_UNNAMED}"

_PROBE_SIZE = 4


def register_blueprint(family: str, blueprint_id: str, builder: Builder) -> None:
    """Register a blueprint for a host family. A new id gets the next free index of the blueprint head.

    Raises:
        ValueError: unknown family, an id that is not an identifier, a builder that is not callable, or an id that
            belongs to another builder.
    """
    layout_of(family)
    BLUEPRINTS[family].register(blueprint_id, builder)
    INDEX.register(blueprint_id, blueprint_id)


def build_blueprint(family: str, blueprint_id: str, channels: int) -> nn.Module:
    """Build a seed module for a place with ``channels`` channels; draws nothing from the global generators.

    Parameters still have to be initialised from a generator: :func:`esper.hosts.init.reset_parameters`.

    Raises:
        ValueError: unknown family or id, or a width that the blueprint cannot serve.
    """
    layout_of(family)
    builder = BLUEPRINTS[family].find(blueprint_id)
    with global_streams():
        return builder(channels)


def compatible(sites: Iterable[tuple[str, int]]) -> Tensor:
    """Return which blueprints fit which places: registered for the family, supporting the width, keeping the shape.

    Args:
        sites: family and width of each slot's place, in slot order.

    Returns:
        ``bool [S, B]``, B in the order of :func:`blueprint_ids`.

    Raises:
        ValueError: unknown family.
    """
    places, rows = list(sites), {}
    for family, channels in dict.fromkeys(places):
        layout, known = layout_of(family), BLUEPRINTS[family]
        rows[family, channels] = [name in known and _fits(known[name], channels, layout) for name in blueprint_ids()]
    table = torch.tensor([rows[place] for place in places], dtype=torch.bool)
    return table.reshape(len(places), len(blueprint_ids()))


def _fits(builder: Builder, channels: int, layout: Layout) -> bool:
    """Check width and shape by building and running the blueprint, without affecting random generators."""
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
