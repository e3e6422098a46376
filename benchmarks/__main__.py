"""Command line of the benchmarks, ``python -m benchmarks``: run sections, then print or save the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import grower, hosts, iteration, life, memory, observation, peak, ranks, rl, start, throughput
from benchmarks.records import Record, machine
from benchmarks.report import print_section, save
from benchmarks.scale import FULL, QUICK, Scale
from benchmarks.timing import CLOCKS
from esper.runtime.devices import keep_freed_memory
from esper.runtime.terminal import console as terminal
from esper.runtime.terminal import secure

SECTIONS: dict[str, tuple[str, Callable[[Scale], list[Record]]]] = {
    observation.SECTION: (
        "Observation and masks of all environments; ratio to one training step of one bare host",
        observation.run,
    ),
    hosts.SECTION: (
        "Training and validating hosts, per environment and epoch; ratio to bare hosts without modules",
        hosts.run,
    ),
    throughput.SECTION: (
        "Hosts with 0, 1 or 3 conv_light modules, per environment and epoch; ratio to bare hosts without modules",
        throughput.run,
    ),
    life.SECTION: (
        "One conv_light module from germination to its keep, per environment and epoch; ratio to bare hosts without it",
        life.run,
    ),
    grower.SECTION: (
        "One network in its owner's own loop, per epoch of training steps or call of end_epoch; ratio to the bare loop",
        grower.run,
    ),
    iteration.SECTION: ("One PPO iteration by parts; ratio: share of the iteration", iteration.run),
    ranks.SECTION: (
        "The same environments on one rank and on two, per environment and epoch; ratio to one rank",
        ranks.run,
    ),
    start.SECTION: ("Start of a command; ratio to importing torch", start.run),
    peak.SECTION: ("Peak memory of hosts in training, one epoch; ratio to bare hosts", peak.run),
    memory.SECTION: ("Memory of seed modules; ratio to what the live ones need", memory.run),
}
PLAIN_WIDTH = 140
"""Table width when the output is a file or a pipe, in characters."""

TITLES = {name: title for name, (title, _) in SECTIONS.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"some of {', '.join(SECTIONS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="sizes of seconds: to see that it runs, not for numbers")
    parser.add_argument("--threads", type=int, default=1, help="of torch within one operation (default 1)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine (one thread only)")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for results.json and for the tables of its README.md, in which sections that are not run stay as "
        "they are; benchmarks/ for a full run, else nowhere",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {unknown[0]!r}: choose among {', '.join(SECTIONS)}")
    if options.threads < 1:
        parser.error(f"--threads {options.threads} must be at least 1")
    if options.clock == "cpu" and options.threads > 1:
        parser.error("--clock cpu adds the threads' times up: leave --threads at 1")
    chosen = [name for name in SECTIONS if not options.sections or name in options.sections]
    if options.clock == "cpu" and ranks.SECTION in chosen:
        parser.error(
            f"section {ranks.SECTION} is of several processes: --clock cpu takes other sections, named one by one"
        )
    folder = options.out
    # The results beside the code are of a full run: a trial must not replace them.
    if folder is None and chosen == list(SECTIONS) and not options.quick:
        folder = Path(__file__).parent
    scale = replace(QUICK if options.quick else FULL, clock=CLOCKS[options.clock])
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does, for every contender
    _run(chosen, scale, machine(options.clock), folder)


def _run(chosen: Sequence[str], scale: Scale, origin: dict[str, Any], folder: Path | None) -> None:
    console, records = terminal(), []
    if not console.is_terminal:
        console = terminal(width=PLAIN_WIDTH)
    for name in chosen:
        title, measure = SECTIONS[name]
        found = measure(scale)
        print_section(found, title, console)
        records += found
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save(folder, records, origin, TITLES)
        console.print(f"results in {folder / 'results.json'}", highlight=False)


if __name__ == "__main__":
    secure()
    if sys.argv[1:2] == [rl.SECTION]:  # of hours and in parts, so not among the sections
        rl.main(sys.argv[2:])
    else:
        main()
