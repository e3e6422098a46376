"""A training run from start to end: the iterations, the comparison with controls, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from esper.config import summary, to_plain, to_yaml
from esper.config.errors import refused
from esper.config.learning import Twin
from esper.config.root import Config
from esper.config.words import shell_word
from esper.envs.twins import TwinCache
from esper.evaluation.play import compare, try_own_controllers
from esper.experiment.build import Laboratory, build_laboratory, compile_lines, require_compiler
from esper.experiment.members import Member, describe
from esper.experiment.shortage import shortages
from esper.runtime.devices import keep_freed_memory
from esper.runtime.preemption import StopSignals
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.run_folder import RunFolder, run_status, stop_told
from esper.runtime.terminal import say
from esper.telemetry.background import InBackground
from esper.telemetry.buffer import EventBuffer
from esper.telemetry.hub import Logger, TelemetryHub, optional
from esper.telemetry.jsonl import EventsJsonl, MetricsJsonl
from esper.telemetry.wandb_mirror import mirrored
from esper.training.closing import closing_report
from esper.training.progress import Stopwatch
from esper.training.start import Start, how_to_start
from esper.training.trainer import Trainer, rehearse
from esper.views.console import ConsoleLogger


def train(config: Config, run_dir: Path, ranks: Ranks = ALONE) -> None:
    """Train a controller, compare it with its controls, and leave everything in ``run_dir``.

    With ``config.resume`` a run that is there goes on from its last checkpoint.

    Args:
        config: of the run, the same on every rank.
        run_dir: where the first rank writes.
        ranks: this process among those of the run, each with its share of the environments.

    Raises:
        RunError: the disk or the memory is full, or a user's own code fails; the message says what to change, and how
            to go on.
        RunFolderError: the folder already holds a run, another process is at work there, or it cannot be written.
        UsageError: the run there cannot go on as asked.
        Preempted: a signal asked the run to end; it can go on from its last checkpoint.
        PeerLost: another rank has ended.
    """
    stopwatch, folder = Stopwatch(), RunFolder(run_dir)
    keep_freed_memory()
    limits = partial(shortages, config, folder.path, folder.config.exists)
    with StopSignals() as signals, limits(), folder.lock() if ranks.is_first else nullcontext():
        with refused(Config):
            start = ranks.broadcast(how_to_start(folder, config) if ranks.is_first else None)
            assert start is not None, "the first rank has decided"
            if start.finished:
                if ranks.is_first:
                    _say(config, [f"the run in {folder.path} has finished: trainer.num_iterations=<more> goes on"])
                return
            start.set_threads(ranks)
            laboratory = build_laboratory(start.config, ranks)
            require_compiler(laboratory.config, laboratory.device)
            try_own_controllers(laboratory, laboratory.config.evaluation.controllers)
            rehearse(laboratory, folder, start)
        config = laboratory.config  # with the mapping that was chosen
        told = partial(_say_stopped, config, folder, ranks)
        with stop_told(folder, told), ExitStack() as mirrors, ExitStack() as own:
            with signals.deferred():  # a folder that is claimed has a status
                if ranks.is_first:
                    _claim(folder, start, config)
                own.enter_context(run_status(folder, ranks.rank))
            own.enter_context(limits())
            members = describe(laboratory)
            if ranks.is_first:
                _announce(laboratory, folder, members, start)
            mirror = mirrors.enter_context(_mirror(config, folder, ranks))
            _run(laboratory, folder, start, signals, stopwatch, mirror)


def _say_stopped(config: Config, folder: RunFolder, ranks: Ranks, name: str) -> None:
    """Say how a run goes on that a signal of this name has stopped."""
    if ranks.is_first:
        _say(config, [f"{name}: stopped; {shell_word('resume', folder.path)} goes on with this run"])


def _mirror(config: Config, folder: RunFolder, ranks: Ranks) -> AbstractContextManager[list[Logger]]:
    """The run in W&B, if it is wanted there; the first rank's business."""
    if not ranks.is_first:
        return nullcontext([])
    return mirrored(folder, name=config.name, job_type="train", config=to_plain(config), **asdict(config.wandb))


def _run(
    laboratory: Laboratory,
    folder: RunFolder,
    start: Start,
    signals: StopSignals,
    stopwatch: Stopwatch,
    mirror: Sequence[Logger],
) -> None:
    """The iterations, the comparison and the report."""
    config, ranks = laboratory.config, laboratory.ranks
    events = None if ranks.is_first else EventBuffer()
    record: list[Logger] = [events] if events else [MetricsJsonl(folder.metrics), EventsJsonl(folder.events)]
    with TelemetryHub(_watchers(config, mirror, ranks), config.telemetry.level, record=record) as hub:
        trainer = Trainer(laboratory, folder, hub, events, signals=signals, stopwatch=stopwatch)
        trainer.begin(start)
        trainer.run()
        outcomes = compare(
            laboratory,
            trainer.policy,
            trainer.normaliser,
            _evaluation_twins(laboratory, trainer, hub),
            lambda name, done, total: hub.stage(f"held-out hosts, {name}", done, total),
        )
    # Still part of the run: what it leaves behind must be there before it counts as finished.
    members = describe(laboratory, trainer.env.population)
    if ranks.is_first:
        closing_report(laboratory, folder, outcomes, members, wall_seconds=stopwatch.seconds())


def _claim(folder: RunFolder, start: Start, config: Config) -> None:
    if start.reopens:
        folder.reopen(to_yaml(config), {} if start.record is None else start.training["positions"])
    else:
        RunFolder.create(folder.path, to_yaml(config))


def _watchers(config: Config, mirror: Sequence[Logger], ranks: Ranks) -> list[Logger]:
    """What only shows a run; it may take its time elsewhere."""
    if not ranks.is_first:
        return []
    mode, total = config.telemetry.console, config.trainer.num_iterations
    makers: dict[str, Callable[[], Logger]] = {"console": lambda: InBackground(ConsoleLogger(mode, total))}
    makers |= {logger.name: partial(InBackground, logger) for logger in mirror}
    return [logger for name, make in makers.items() for logger in optional(name, make)]


def _announce(laboratory: Laboratory, folder: RunFolder, members: Sequence[Member], start: Start) -> None:
    resuming = start.lines(laboratory.ranks, laboratory.device)
    choice = [] if start.reopens else laboratory.choice.lines()
    told = [*choice, *compile_lines(laboratory.config, laboratory.device), f"run folder {folder.path}", *resuming]
    _say(laboratory.config, [summary(laboratory.config), *map(str, members), *told])


def _say(config: Config, lines: Sequence[str]) -> None:
    if config.telemetry.console != "off":
        say(*lines)


def _evaluation_twins(laboratory: Laboratory, trainer: Trainer, hub: TelemetryHub) -> TwinCache | None:
    """Twins stacked as high as the environments of the evaluation."""
    config = laboratory.config
    if config.reward.twin is Twin.none:
        return None
    share = laboratory.share(config.evaluation.num_hosts)
    if len(share) == trainer.env.num_envs:
        return trainer.twins
    return laboratory.twins(len(share), lambda done, total: hub.stage("never-grown twins, held-out hosts", done, total))
