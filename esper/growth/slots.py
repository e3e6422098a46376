"""Slot ids: their form, their canonical order, and the selection of a host's places as slots.

``r{row}c{col}``: the column is the position along the host's depth, the row the kind of place (0 after a block's
convolution or attention, 1 after its pooling or MLP).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

SLOT_PATTERN = re.compile(r"r(0|[1-9][0-9]*)c(0|[1-9][0-9]*)")


def parse_slot_id(slot_id: str) -> tuple[int, int]:
    """Return row and column of a slot id.

    Raises:
        ValueError: the id is not of the form ``r{row}c{col}``.
    """
    match = SLOT_PATTERN.fullmatch(slot_id)
    if match is None:
        raise ValueError(f"slot id {slot_id!r} is not of the form r<row>c<column>, for example 'r0c2'")
    return int(match[1]), int(match[2])


def sort_slot_ids(slot_ids: Iterable[str]) -> tuple[str, ...]:
    """Sort slot ids in canonical order, by column, then row. No other function decides the order.

    Raises:
        ValueError: an id is malformed.
    """

    def key(slot_id: str) -> tuple[int, int]:
        row, col = parse_slot_id(slot_id)
        return col, row

    return tuple(sorted(slot_ids, key=key))


def select_slots(places: Sequence[str], num_slots: int, ids: Sequence[str] | None = None) -> tuple[str, ...]:
    """Choose the slots of a run among the places of a host.

    Without ``ids`` the slots are spread evenly: the places are divided into ``num_slots`` equal ranges of depth, and
    the middle of each is chosen.

    Args:
        places: slot ids of the host's places, in any order.
        num_slots: number of slots, at least 1.
        ids: an explicit choice instead, of the same length.

    Returns:
        ``num_slots`` ids in canonical order.

    Raises:
        ValueError: the host has fewer places, or ``ids`` names unknown, repeated, too many or too few places.
    """
    ordered = sort_slot_ids(places)
    offer = f"the host has {len(ordered)}: {', '.join(ordered) or 'none'}"
    if num_slots < 1:
        raise ValueError(f"num_slots={num_slots} must be at least 1; {offer}")
    if num_slots > len(ordered):
        raise ValueError(f"num_slots={num_slots} asks for more places than there are; {offer}")
    if ids is None:
        return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * num_slots)] for i in range(num_slots))
    chosen = sort_slot_ids(ids)
    unknown = [slot_id for slot_id in chosen if slot_id not in ordered]
    if unknown:
        raise ValueError(f"no such place for a slot: {', '.join(unknown)}; {offer}")
    repeated = [slot_id for slot_id, count in Counter(chosen).items() if count > 1]
    if repeated:
        raise ValueError(f"slot ids named more than once: {', '.join(repeated)}")
    if len(chosen) != num_slots:
        raise ValueError(f"num_slots={num_slots}, but {len(chosen)} slot ids are listed: {', '.join(chosen)}")
    return chosen
