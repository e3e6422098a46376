"""Slot ids have one order, and slots are spread evenly over a host's places."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.growth.slots import parse_slot_id, select_slots, sort_slot_ids

PLACES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), min_size=1, max_size=20, unique=True).map(
    lambda cells: [f"r{row}c{col}" for row, col in cells]
)


def test_slot_ids_parse_to_row_and_column() -> None:
    assert parse_slot_id("r1c12") == (1, 12)


@pytest.mark.parametrize("slot_id", ["", "r0", "c0r0", "r0c", "r00c1", "r0c01", "r-1c0", "r0c0 ", "R0C0", "r0c0x"])
def test_a_malformed_id_is_refused_by_name(slot_id: str) -> None:
    with pytest.raises(ValueError, match=f"slot id {slot_id!r}"):
        parse_slot_id(slot_id)


def test_order_is_by_column_then_row_and_numeric() -> None:
    assert sort_slot_ids(["r0c10", "r1c2", "r0c2", "r1c0"]) == ("r1c0", "r0c2", "r1c2", "r0c10")


@given(st.data(), PLACES)
def test_order_does_not_depend_on_insertion_order(data: st.DataObject, places: list[str]) -> None:
    shuffled = data.draw(st.permutations(places))
    num_slots = data.draw(st.integers(1, len(places)))
    assert sort_slot_ids(shuffled) == sort_slot_ids(places)
    assert select_slots(shuffled, num_slots) == select_slots(places, num_slots)
    assert select_slots(places, len(places), ids=shuffled) == sort_slot_ids(places)


@given(st.integers(1, 40), st.data())
def test_slots_are_distinct_and_evenly_spread(num_places: int, data: st.DataObject) -> None:
    """Gaps between neighbours differ by at most one place, and the ends are left alike."""
    num_slots = data.draw(st.integers(1, num_places))
    chosen = [parse_slot_id(slot)[1] for slot in select_slots([f"r0c{i}" for i in range(num_places)], num_slots)]
    gaps = [right - left for left, right in pairwise(chosen)]
    assert len(set(chosen)) == num_slots
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)
    assert abs(chosen[0] - (num_places - 1 - chosen[-1])) <= 1


@pytest.mark.parametrize(
    ("num_slots", "expected"), [(1, ["r0c4"]), (2, ["r0c2", "r0c6"]), (4, ["r0c1", "r0c3", "r0c5", "r0c7"])]
)
def test_spread_over_eight_places(num_slots: int, expected: list[str]) -> None:
    assert select_slots([f"r0c{i}" for i in range(8)], num_slots) == tuple(expected)


def test_too_many_slots_says_how_many_the_host_has() -> None:
    with pytest.raises(ValueError, match=r"num_slots=4 .* the host has 3: r0c0, r0c1, r0c2"):
        select_slots(["r0c2", "r0c0", "r0c1"], 4)


def test_no_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots=0"):
        select_slots(["r0c0"], 0)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["r0c0", "r0c9"], "no such place for a slot: r0c9; the host has 3"),
        (["r0c0", "r0c0"], "more than once: r0c0"),
        (["r0c0"], "num_slots=2, but 1 slot ids are listed"),
    ],
)
def test_a_wrong_list_of_ids_is_refused(ids: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_slots(["r0c0", "r0c1", "r0c2"], 2, ids=ids)
