"""How much to run: everything, or enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from time import perf_counter

from benchmarks.timing import Clock
from esper.config import compose
from esper.experiment.build import Laboratory, build_laboratory


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of all sections.

    Attributes:
        preset: of hosts and of the whole iteration.
        hosts: environments at once, and timed rounds, of the host section.
        shapes: environments and slots of the observation section.
        calls: timed calls of the observation section.
        iterations: PPO iterations.
        digits, colour: environments at once, and timed rounds, of the throughput section, for its two kinds of host.
        life: environments, timed rounds, and epochs of the section on one module's life.
        image_size, image_batch: side of a colour image, and how many of them are in a batch.
        peak: environments at once whose peak memory is measured.
        rank_rounds, rank_iterations: runs on each number of ranks, and their iterations.
        rank_sizes: environments in all and epochs of an episode.
        overrides: of the whole iteration.
        clock: seconds so far.
    """

    preset: str
    hosts: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, int], ...]
    calls: int
    iterations: int
    digits: tuple[tuple[int, int], ...]
    colour: tuple[tuple[int, int], ...]
    life: tuple[int, int, int]
    image_size: int
    image_batch: int
    peak: tuple[int, ...]
    rank_rounds: int
    rank_iterations: int
    rank_sizes: tuple[tuple[int, int], ...]
    overrides: tuple[str, ...] = ()
    clock: Clock = perf_counter


# Small populations take less time per round and get more rounds: their calls are short, so noise weighs more.
FULL = Scale(
    preset="digits",
    hosts=((4, 9), (16, 5)),
    shapes=((4, 3), (64, 8)),
    calls=500,
    iterations=2,
    digits=((1, 9), (4, 7), (16, 5), (64, 3)),
    colour=((1, 7), (4, 5), (16, 2), (64, 1)),
    life=(4, 5, 25),
    image_size=32,
    image_batch=128,
    peak=(4, 16),
    rank_rounds=5,
    rank_iterations=3,
    rank_sizes=((24, 10), (96, 4)),
    overrides=("instances.num_train=32",),
)
QUICK = Scale(
    preset="smoke",
    hosts=((2, 1),),
    shapes=((4, 3), (64, 8)),
    calls=5,
    iterations=1,
    digits=((2, 1),),
    colour=((2, 1),),
    life=(2, 1, 9),
    image_size=8,
    image_batch=8,
    peak=(1,),
    rank_rounds=1,
    rank_iterations=2,
    rank_sizes=((4, 4),),
)


@cache
def laboratory(preset: str, *overrides: str) -> Laboratory:
    """Data, host, slots and sizes of a preset."""
    # A fixed mapping: what is measured must not depend on what was fastest a moment ago.
    return build_laboratory(compose(f"+preset={preset}", "env.mapping=matmul", *overrides))
