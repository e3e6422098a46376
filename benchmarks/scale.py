"""Amount of work of a benchmark run: full, or just enough to check that everything runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from time import perf_counter

from benchmarks.timing import Clock
from esper.config import compose
from esper.experiment.build import Experiment, build_experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of all sections.

    Attributes:
        preset: preset of the hosts and of the whole iteration.
        hosts: number of environments and of timed rounds, host section.
        shapes: numbers of environments and slots, observation section.
        calls: timed calls, observation section.
        iterations: number of PPO iterations.
        digits, colour: number of environments and of timed rounds for the two kinds of host, throughput section.
        life: number of environments, timed rounds and epochs, life section.
        grower: timed rounds of the digits network and of the 32x32 one, grower section.
        image_size, image_batch: side of a colour image in pixels, and images per batch.
        peak: numbers of environments, peak section.
        rank_rounds, rank_iterations: runs for each number of ranks, and their iterations.
        rank_sizes: total number of environments, and epochs of an episode.
        start_rounds: starts of each kind, start section.
        overrides: overrides of the whole iteration.
        clock: function that returns the current time in seconds.
    """

    preset: str
    hosts: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, int], ...]
    calls: int
    iterations: int
    digits: tuple[tuple[int, int], ...]
    colour: tuple[tuple[int, int], ...]
    life: tuple[int, int, int]
    grower: tuple[int, int]
    image_size: int
    image_batch: int
    peak: tuple[int, ...]
    rank_rounds: int
    rank_iterations: int
    rank_sizes: tuple[tuple[int, int], ...]
    start_rounds: int
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
    grower=(61, 15),
    image_size=32,
    image_batch=128,
    peak=(4, 16),
    rank_rounds=5,
    rank_iterations=3,
    rank_sizes=((24, 10), (96, 4)),
    start_rounds=5,
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
    grower=(1, 1),
    image_size=8,
    image_batch=8,
    peak=(1,),
    rank_rounds=1,
    rank_iterations=2,
    rank_sizes=((4, 4),),
    start_rounds=1,
)


@cache
def experiment_of(preset: str, *overrides: str) -> Experiment:
    """Build the experiment of a preset: data, host, slots and sizes."""
    # A fixed mapping: results must not depend on what was fastest a moment ago.
    return build_experiment(compose(f"+preset={preset}", "env.mapping=matmul", *overrides))
