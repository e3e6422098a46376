"""Random streams are named, stable and apart."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.runtime.rng import GlobalStreams, derive_seed, generator, global_streams

PARTS = st.lists(st.integers() | st.text(max_size=5), max_size=4)


@given(PARTS, PARTS)
def test_different_names_have_different_seeds(left: list[int | str], right: list[int | str]) -> None:
    assert 0 <= derive_seed(*left) < 2**63
    assert (derive_seed(*left) == derive_seed(*right)) == (left == right)


def test_order_type_and_boundaries_matter() -> None:
    streams = [(1, 2), (2, 1), (12,), ("1", 2), ("12",), ("1", "2"), (1, 2, ""), ()]
    assert len({derive_seed(*parts) for parts in streams}) == len(streams)


def test_a_seed_does_not_depend_on_the_process() -> None:
    assert derive_seed("order", 7, 3) == 1154732829239460097, "it must not depend on the hash seed of a process"


def test_a_part_that_is_no_name_and_no_number_is_refused() -> None:
    with pytest.raises(TypeError):
        derive_seed(0.5)  # type: ignore[arg-type]


def test_generators_of_one_stream_agree_and_leave_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    first = torch.rand(4, generator=generator("host", 1))
    again = torch.rand(4, generator=generator("host", 1))
    other = torch.rand(4, generator=generator("module", 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("draws", [0, 1, 2, 3])
@pytest.mark.parametrize("inside", [0, 1, 2])
def test_global_generators_go_on_as_if_nothing_had_been_drawn(draws: int, inside: int) -> None:
    # numpy draws normal numbers in pairs: after an odd number of draws it keeps one apart from the generator's memory.
    streams = GlobalStreams()
    try:
        GlobalStreams.seed(3)
        for _ in range(draws):
            np.random.randn(), random.gauss(0, 1)  # noqa: NPY002
        with global_streams() as before:
            for _ in range(inside):
                np.random.randn(), random.gauss(0, 1), torch.rand(1)  # noqa: NPY002
            assert before.moved() == (["torch", "numpy", "random"] if inside else [])
        went_on = [(np.random.randn(), random.gauss(0, 1), torch.rand(1)) for _ in range(4)]  # noqa: NPY002
        GlobalStreams.seed(3)
        for _ in range(draws):
            np.random.randn(), random.gauss(0, 1)  # noqa: NPY002
        assert went_on == [(np.random.randn(), random.gauss(0, 1), torch.rand(1)) for _ in range(4)]  # noqa: NPY002
    finally:
        streams.restore()
