"""A training run from start to end: the iterations, the comparison with controls, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from esper.config import to_plain, to_yaml
from esper.config.errors import refused
from esper.config.learning import Twin
from esper.config.root import Config, SaveGrown
from esper.config.words import shell_word
from esper.envs.twins import TwinCache
from esper.evaluation.grown import Keeper
from esper.evaluation.play import compare, try_own_controllers
from esper.experiment.build import Experiment, build_experiment, compile_lines, require_compiler
from esper.experiment.imitating import build_expert
from esper.experiment.rank_info import RankInfo, gather_rank_info
from esper.experiment.shortage import shortages
from esper.runtime.devices import keep_freed_memory, thread_lines
from esper.runtime.preemption import StopSignals
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.run_folder import RunFolder, run_status, stop_told
from esper.runtime.terminal import say
from esper.telemetry.background import InBackground
from esper.telemetry.buffer import EventBuffer
from esper.telemetry.hub import Logger, TelemetryHub, optional
from esper.telemetry.jsonl import EventsJsonl, MetricsJsonl
from esper.telemetry.loggers import LOGGERS, WANDB, LoggedRun
from esper.telemetry.wandb_mirror import mirrored
from esper.training.closing import training_report
from esper.training.progress import Stopwatch
from esper.training.start import Start, find_start
from esper.training.trainer import Trainer, check_start
from esper.views.console import ConsoleLogger


def train(config: Config, run_dir: Path, ranks: Ranks = ALONE) -> None:
    """Train a controller, compare it with its controls, and write everything to ``run_dir``.

    With ``config.resume`` an existing run is resumed from its last checkpoint.

    Args:
        config: configuration of the run, the same on every rank.
        run_dir: run folder, written by the first rank.
        ranks: the ranks of the run, each with its share of the environments.

    Raises:
        RunError: the disk or the memory is full, or a user's own code fails; the message names the remedy and the
            command to resume.
        RunFolderError: the folder already holds a run, another process is using it, or it cannot be written.
        UsageError: the run there cannot be resumed as requested.
        Preempted: a signal asked the run to stop; it can be resumed from its last checkpoint.
        PeerLost: another rank has ended.
    """
    stopwatch, folder = Stopwatch(), RunFolder(run_dir)
    keep_freed_memory()
    limits = partial(shortages, config, folder.path, folder.config.exists)
    with StopSignals() as signals, limits(), folder.lock() if ranks.is_first else nullcontext():
        with refused(Config):
            start = ranks.broadcast(find_start(folder, config) if ranks.is_first else None)
            assert start is not None, "the first rank has decided"
            if start.finished:
                if ranks.is_first:
                    _say(config, [f"the run in {folder.path} has finished: trainer.num_iterations=<more> extends it"])
                return
            start.set_threads(ranks)
            experiment = build_experiment(start.config, ranks)
            require_compiler(experiment.config, experiment.device)
            try_own_controllers(experiment, experiment.config.evaluation.controllers)
            if config.imitation.controller is not None:
                build_expert(experiment, *experiment.policy(), num_envs=1)
            check_start(experiment, folder, start)
        config = experiment.config  # with the chosen mapping
        told = partial(_say_stopped, config, folder, ranks)
        with stop_told(folder, told), ExitStack() as mirrors, ExitStack() as own:
            with signals.deferred():  # a claimed folder has a status
                if ranks.is_first:
                    _claim(folder, start, config)
                own.enter_context(run_status(folder, ranks.rank))
            own.enter_context(limits())
            rank_infos = gather_rank_info(experiment)
            if ranks.is_first:
                _announce(experiment, folder, rank_infos, start)
            mirror = mirrors.enter_context(_mirror(config, folder, ranks))
            _run(experiment, folder, start, signals, stopwatch, mirror)


def _say_stopped(config: Config, folder: RunFolder, ranks: Ranks, name: str) -> None:
    """Print the command that resumes a run which a signal with this name has stopped."""
    if ranks.is_first:
        _say(config, [f"{name}: stopped; {shell_word('resume', folder.path)} resumes this run"])


def _mirror(config: Config, folder: RunFolder, ranks: Ranks) -> AbstractContextManager[list[Logger]]:
    """Mirror the run to W&B if configured, on the first rank."""
    if not ranks.is_first:
        return nullcontext([])
    return mirrored(
        folder,
        name=config.name,
        job_type="train",
        config=to_plain(config),
        timeline_every=config.trainer.checkpoint_every,
        tell=lambda line: _say(config, [line]),
        **asdict(config.wandb),
    )


def _run(
    experiment: Experiment,
    folder: RunFolder,
    start: Start,
    signals: StopSignals,
    stopwatch: Stopwatch,
    mirror: Sequence[Logger],
) -> None:
    """Run the iterations, the comparison and the report."""
    config, ranks = experiment.config, experiment.ranks
    events = None if ranks.is_first else EventBuffer()
    record: list[Logger] = [events] if events else [MetricsJsonl(folder.metrics), EventsJsonl(folder.events)]
    watchers = _watchers(config, mirror, _logged(config, folder, start)) if ranks.is_first else []
    with TelemetryHub(watchers, config.telemetry.level, record=record) as hub:
        trainer = Trainer(experiment, folder, hub, events, signals=signals, stopwatch=stopwatch)
        trainer.begin(start)
        trainer.run()
        keeper = Keeper(config.evaluation.save_grown)
        outcomes = compare(
            experiment,
            trainer.policy,
            trainer.normaliser,
            _evaluation_twins(experiment, trainer, hub),
            lambda name, done, total: hub.stage(f"held-out hosts, {name}, epoch", done, total),
            learned=None if keeper.which is SaveGrown.none else keeper,
        )
    saved = keeper.save(folder, ranks)
    # Still part of the run: its files must exist before it counts as finished.
    rank_infos = gather_rank_info(experiment, trainer.env.population)
    if ranks.is_first:
        training_report(experiment, folder, outcomes, rank_infos, saved, elapsed=stopwatch.seconds)


def _claim(folder: RunFolder, start: Start, config: Config) -> None:
    if start.reopens:
        folder.reopen(to_yaml(config), {} if start.record is None else start.training["positions"])
    else:
        RunFolder.create(folder.path, to_yaml(config))


def _logged(config: Config, folder: RunFolder, start: Start) -> LoggedRun:
    iteration = 0 if start.record is None else start.record["iteration"]
    return LoggedRun(folder=folder.path, config=to_plain(config), iteration=iteration)


def _watchers(config: Config, mirror: Sequence[Logger], run: LoggedRun) -> list[Logger]:
    """Build the loggers that only display the run; they may work in the background."""
    mode, total = config.telemetry.console, config.trainer.num_iterations
    makers: list[tuple[str, Callable[[], Logger]]] = [("console", lambda: InBackground(ConsoleLogger(mode, total)))]
    makers += [(logger.name, partial(InBackground, logger)) for logger in mirror]
    chosen = [name for name in config.telemetry.loggers if name != WANDB]
    makers += [(name, partial(_in_background, LOGGERS[name], run)) for name in chosen]
    return [logger for name, make in makers for logger in optional(name, make)]


def _in_background(make: Callable[[LoggedRun], Logger], run: LoggedRun) -> Logger:
    return InBackground(make(run))


def _announce(experiment: Experiment, folder: RunFolder, rank_infos: Sequence[RankInfo], start: Start) -> None:
    resuming = start.lines(experiment.ranks, experiment.device)
    choice = [] if start.reopens else experiment.choice.lines()
    slow = compile_lines(experiment.config, experiment.device)
    fewer = thread_lines(experiment.config.num_threads, experiment.ranks.local_size)
    first, imitation = [], experiment.config.imitation
    if imitation.controller is not None:
        first = [f"{imitation.controller} plays iterations 1 to {imitation.iterations}, and the policy imitates it"]
    where = f"run folder {folder.path}, with the whole configuration in {folder.config.name}"
    _say(experiment.config, [*map(str, rank_infos), *choice, *fewer, *slow, *first, where, *resuming])


def _say(config: Config, lines: Sequence[str]) -> None:
    if config.telemetry.console != "off":
        say(*lines)


def _evaluation_twins(experiment: Experiment, trainer: Trainer, hub: TelemetryHub) -> TwinCache | None:
    """Return twins for stacks of the evaluation's size."""
    config = experiment.config
    if config.reward.twin is Twin.none:
        return None
    share = experiment.share(config.evaluation.num_hosts)
    if len(share) == trainer.env.num_envs:
        return trainer.twins
    return experiment.twins(len(share), lambda done, total: hub.stage("never-grown twins, held-out hosts", done, total))
