"""Random joins of faults: every host draws which of its blocks are faulty, and one fault of the whole host.

Splits are disjoint as joins: no join of one occurs in another, so that what is learned on one split must combine faults
anew on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from esper.hosts.faults import INTACT, JOIN, LOCAL_FAULTS
from esper.runtime.rng import derive_seed, generator

SPLIT_SHARES = {"train": 2, "validation": 1, "held_out": 1}
"""Shares of all joins that belong to each split."""

MAX_TRIES = 10_000
"""Draws without a join of the split after which there is taken to be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """Distribution of joins of faults.

    Attributes:
        block_faults: probability of each fault in each block, independently: ``starved``, and the one that keeps a
            block from mixing pixels or tokens.
        host_faults: weights of the faults of which each host has one, ``intact`` for none; without any, it has none.
        num_blocks: number of the host's blocks or layers.
        mixing_blocks: those that mix pixels or tokens, and so can be kept from it.
    """

    block_faults: Mapping[str, float]
    host_faults: Mapping[str, float]
    num_blocks: int
    mixing_blocks: tuple[int, ...]

    def draw(self, stream: torch.Generator) -> str:
        """Draw a join, as parsed by :func:`esper.hosts.faults.parse_faults`."""
        parts = []
        for kind, chance in self.block_faults.items():
            hit = (torch.rand(self.num_blocks, generator=stream) < chance).nonzero().flatten().tolist()
            if kind in LOCAL_FAULTS:
                cut = [block for block in hit if block in self.mixing_blocks]
                parts += [f"{kind}_{''.join(map(str, cut))}"] if cut else []
            else:
                parts += [f"{kind}_{block}" for block in hit]
        if self.host_faults:
            weights = torch.tensor(list(self.host_faults.values()), dtype=torch.float64)
            parts.append(list(self.host_faults)[int(torch.multinomial(weights, 1, generator=stream))])
        return JOIN.join(part for part in parts if part != INTACT) or INTACT

    def draw_split(self, count: int, split: str, base_seed: int) -> list[str]:
        """Draw ``count`` joins of a split, which may repeat.

        Raises:
            ValueError: no join belongs to the split.
        """
        found: list[str] = []
        tries, stream = 0, generator("joins", base_seed, split)
        while len(found) < count:
            join, tries = self.draw(stream), tries + 1
            if split_of(join, base_seed) == split:
                found.append(join)
                tries = 0
            elif tries == MAX_TRIES:
                raise ValueError(
                    f"instances.block_faults={dict(self.block_faults)} makes too few different hosts: none is in the "
                    f"split {split}; choose chances between 0 and 1, or another instances.base_seed"
                )
        return found


def split_of(join: str, base_seed: int) -> str:
    """Return the split that a join belongs to, whatever the distribution: a hash of its name."""
    place = derive_seed("split of a join", base_seed, join) % sum(SPLIT_SHARES.values())
    for split, share in SPLIT_SHARES.items():
        place -= share
        if place < 0:
            return split
    raise AssertionError("shares add up")
