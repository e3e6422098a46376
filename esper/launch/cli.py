"""Entry points through Hydra: check everything before a run folder is made, and refuse errors in one line.

Hydra itself makes the run folder first and reports errors at length, so each job is first composed, loaded and checked
here; then Hydra runs it. Exit codes: 0 done, 1 a run failed, 2 the request cannot be met.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from esper.config.errors import RunError, UsageError, refused
from esper.config.hydra_private import BasicSweeper, Hydra, create_config_search_path, get_args_parser, run_hydra
from esper.config.paths import CONF_DIR, expanded
from esper.config.root import Config
from esper.config.store import VERSION_BASE, load, with_words
from esper.config.words import quoted, readable_by_hydra
from esper.experiment.resume import AUTO, interrupted_run, saved_config, saved_text
from esper.experiment.shortage import ELSEWHERE, shortages
from esper.launch.entries import Entry
from esper.launch.files import Loader
from esper.launch.flags import parse_flags
from esper.launch.help import show_help
from esper.launch.sweep import Planner
from esper.launch.sweep_task import JobWork
from esper.runtime.placement import outside_placement
from esper.runtime.preemption import StopSignals
from esper.runtime.run_folder import RunFolder, RunFolderError
from esper.runtime.terminal import ConsoleMode, say
from esper.runtime.waiting import waited

Check = Callable[[Any], None]
"""Function that checks a configuration of the entry point's schema."""

T = TypeVar("T")

ROOM = 1 << 16
"""Bytes written to a folder as a test of free space: fewer than any run writes, more than a full disk accepts."""

RUN_FILES = ("config.yaml", "status.json")
"""Files that identify a run folder; one of them is enough."""


def run(entry: Entry, task: JobWork, check: Check) -> None:
    """Run ``task(config, run_dir)`` as the command line requests: once, as a sweep, or not at all (``--help``,
    ``--cfg``).

    Args:
        entry: names the root configuration and its schema.
        task: function that does the work. :class:`UsageError` and :class:`RunError` from it end the process in one
            line; any other exception is a bug and shows its traceback.
        check: raises ``ValueError`` for a configuration that cannot run, before anything is written to disk.
    """
    setbase(VERSION_BASE)
    with StopSignals(), one_line_errors():
        arguments = parse_flags()
        if not arguments.shell_completion:
            arguments.overrides = readable_by_hydra(arguments.overrides, entry.schema, sweeps=arguments.multirun)
        if arguments.help:
            show_help(entry, _compose(arguments, entry), arguments.config_dir)
            return
        if arguments.hydra_help or arguments.info:
            _compose(arguments, entry)
        elif not arguments.shell_completion:
            placement = outside_placement()
            if placement is not None and arguments.multirun:
                raise UsageError(
                    f"a sweep (-m) cannot be run by {placement.size} ranks at once: start it as one process, "
                    "with devices=[...] for several ranks per job"
                )
            if placement is not None and placement.rank > 0 and not arguments.cfg:
                _follow(arguments, entry, task, check)
                return
            if arguments.multirun:
                if _sweep(arguments, entry, task, check):
                    return
            else:
                for config, run_dir in _check_before(arguments, entry, check):
                    if _holds_a_run(config, run_dir):
                        task(config, run_dir)  # without Hydra, which would create another folder
                        return

    def job(cfg: DictConfig) -> None:
        run_dir = Path(HydraConfig.get().runtime.output_dir)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            # With a user's own sweeper, Hydra continues with the other jobs and reports the first error at the end.
            task(load(cfg, entry.schema), run_dir)
            return
        with one_line_errors():
            task(load(cfg, entry.schema), run_dir)

    with StopSignals():
        run_hydra(
            args=arguments,
            args_parser=get_args_parser(),
            task_function=job,
            config_path=str(CONF_DIR),
            config_name=entry.config_name,
        )


def _follow(arguments: argparse.Namespace, entry: Entry, task: JobWork, check: Check) -> None:
    """Run as a later rank under torchrun or srun: same configuration, while the first rank makes and checks the
    folder.
    """
    loader = _loader(arguments)
    with refused(entry.schema, loader.located):
        [(config, run_dir)] = _load_jobs(loader, arguments, entry)
        check(config)
    task(config, run_dir)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line and its exit code, or with the full traceback if ``HYDRA_FULL_ERROR=1``."""
    try:
        with shortages():
            yield
    except (UsageError, RunError, RunFolderError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        say(f"error: {error}", stderr=True)
        # Not an Exception, so that Hydra does not report it a second time.
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None


def _sweep(arguments: argparse.Namespace, entry: Entry, task: JobWork, check: Check) -> bool:
    """Run a sweep; return ``False`` for a sweeper other than Hydra's own, which chooses its jobs while it runs.

    Raises:
        UsageError: none of its jobs can run.
        RunError: some job has not finished.
    """
    from esper.launch.sweep_run import run_sweep  # not above: it imports torch

    loader, name = _loader(arguments), arguments.config_name or entry.config_name
    try:
        with refused(entry.schema, loader.located):
            master = loader.load_configuration(name, list(arguments.overrides), run_mode=RunMode.MULTIRUN)
            if not str(master.hydra.sweeper._target_).endswith(f".{BasicSweeper.__name__}"):
                return False
            sweep_dir = _resolved(master, lambda: Path(master.hydra.sweep.dir))
            # Jobs are composed again, some in other processes: all must use the folder chosen here.
            with read_write(master.hydra):
                master.hydra.sweep.dir = str(sweep_dir)
                master.hydra.overrides.hydra += [f"hydra.sweep.dir={quoted(str(sweep_dir))}", "hydra.mode=MULTIRUN"]
            planner = Planner(
                loader=loader,
                master=master,
                schema=entry.schema,
                load=partial(_load_sweep_job, entry),
                folder_of=_sweep_folder,
                check=check,
            )
            jobs = planner.plan()
        check_writable(sweep_dir)
        waited()  # jobs count their own time
        say(introduction(f"sweep {sweep_dir.name}", arguments.overrides))
        run_sweep(loader, master, entry, task, jobs)
    finally:
        GlobalHydra.instance().clear()
    return True


def _check_before(arguments: argparse.Namespace, entry: Entry, check: Check) -> list[tuple[Any, Path]]:
    """Refuse configurations that cannot run; return configuration and run folder, or nothing for ``--cfg``."""
    loader = _loader(arguments)
    with refused(entry.schema, loader.located):
        jobs = _load_jobs(loader, arguments, entry)
        for config, run_dir in jobs:
            if getattr(config, "telemetry", config).console is not ConsoleMode.off:
                say(introduction(run_dir.name, arguments.overrides))  # before the seconds that torch takes to import
            with shortages(config, begun=False):
                check(config)
            if not _holds_a_run(config, run_dir):
                check_free(run_dir, continuable=entry.schema is Config)
    for _, run_dir in jobs:
        check_writable(run_dir)
    return jobs


def introduction(name: str, words: Sequence[str]) -> str:
    """Return the first line of a command: a run or a sweep, and in which keys it differs from the defaults."""
    shown = [word.lstrip("+") for word in words if not word.lstrip("+").startswith(("hydra.", "hydra/"))]
    return f"{name}: {' '.join(shown) or 'the defaults'}"


def _holds_a_run(config: Any, run_dir: Path) -> bool:
    """Return whether the job resumes a run that exists."""
    resumes = isinstance(config, Config) and config.resume is not None
    return resumes and RunFolder(run_dir).holds_run


def check_free(run_dir: Path, *, continuable: bool) -> None:
    """Refuse a folder that holds a run; ``continuable`` adds that it could be resumed."""
    others = "remove it, or resume it with resume=auto" if continuable else "or remove it"
    for name in RUN_FILES:
        if os.path.lexists(run_dir / name):
            raise UsageError(
                f"run folder {run_dir} already holds a run ({name}): choose another with name=<name> or "
                f"hydra.run.dir=<folder>, {others}"
            )


def check_writable(folder: Path) -> None:
    """Make a folder and check that a file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
    except OSError as error:
        with suppress(OSError):  # it existed before, and holds other files
            folder.rmdir()
        raise RunError(f"cannot write to {folder} ({error.strerror}): {ELSEWHERE}") from error


def _loader(arguments: argparse.Namespace) -> Loader:
    """Make Hydra's loader of configurations; its global state must be cleared after use."""
    search_path = create_config_search_path(str(CONF_DIR))
    if arguments.config_dir is not None:
        # Where Hydra itself puts it: after Esper's own files, and before the schemas, which must be last.
        folder = f"file://{Path(arguments.config_dir).resolve()}"
        search_path.prepend("command-line", folder, anchor=SearchPathQuery(provider="schema"))
    loader = Loader(search_path)
    GlobalHydra.instance().initialize(Hydra(task_name="check", config_loader=loader))
    return loader


def _compose(arguments: argparse.Namespace, entry: Entry) -> DictConfig:
    """Compose a configuration, or refuse it, for flags that only show it."""
    try:
        with refused(entry.schema):
            loader, name = _loader(arguments), arguments.config_name or entry.config_name
            return loader.load_configuration(name, list(arguments.overrides), run_mode=RunMode.RUN)
    finally:
        GlobalHydra.instance().clear()


def _load_jobs(loader: Loader, arguments: argparse.Namespace, entry: Entry) -> list[tuple[Any, Path]]:
    """Return configuration and run folder of a single run; nothing for ``--cfg``, which only has to compose."""
    name = arguments.config_name or entry.config_name
    try:
        words = OverridesParser.create(loader).parse_overrides(list(arguments.overrides))
        named = [word.value() for word in words if word.key_or_group == "resume"]
        if named and named[-1] not in (None, AUTO) and not arguments.cfg:
            return [_continued(expanded(str(named[-1])), words, entry)]
        cfg = loader.load_configuration(name, list(arguments.overrides), run_mode=RunMode.RUN)
        if arguments.cfg:
            return []
        if cfg.hydra.sweeper.get("params") or cfg.hydra.mode is RunMode.MULTIRUN:
            raise UsageError("this is a sweep of several runs: start it with -m")
        return [_where_it_was(*_load_job(cfg, entry, lambda: Path(cfg.hydra.run.dir)))]
    finally:
        GlobalHydra.instance().clear()


def _continued(folder: str, words: Sequence[Override], entry: Entry) -> tuple[Any, Path]:
    """Return the run in a folder, with its own configuration and the changes from the command line."""
    for word in words:
        if word.key_or_group.startswith("hydra.") or (is_group(word) and not isinstance(word.value(), dict)):
            raise UsageError(
                f"resume={folder} takes place and configuration from that folder: leave {word.input_line} out"
            )
    saved_config(RunFolder(Path(folder)))  # arguments cannot correct it
    return with_words(saved_text(RunFolder(Path(folder))), entry.schema, words), Path(folder)


def _where_it_was(config: Any, run_dir: Path) -> tuple[Any, Path]:
    """Return the interrupted run's folder for ``resume=auto`` if there is one; otherwise the given folder."""
    if isinstance(config, Config) and config.resume == AUTO and not _holds_a_run(config, run_dir):
        return config, interrupted_run(run_dir.parent, config) or run_dir
    return config, run_dir


def is_group(word: Override) -> bool:
    """Return whether an argument chooses a file of a configuration group."""
    return (CONF_DIR / word.key_or_group).is_dir()


def _load_sweep_job(entry: Entry, cfg: DictConfig) -> Any:
    config, _ = _load_job(cfg, entry, Path)
    if isinstance(config, Config) and config.resume not in (None, AUTO):
        raise UsageError(f"resume={config.resume} resumes one run: leave -m out, or use resume=auto")
    return config


def _sweep_folder(cfg: DictConfig) -> Path:
    return _resolved(cfg, lambda: Path(cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir))


def _load_job(cfg: DictConfig, entry: Entry, run_dir: Callable[[], Path]) -> tuple[Any, Path]:
    if OmegaConf.get_type(cfg) is not entry.schema:
        raise UsageError(
            f"--config-name={cfg.hydra.job.config_name} is no root configuration of this command: let its defaults "
            f"list begin with {entry.config_name}"
        )

    def read() -> tuple[Any, Path]:
        job = copy.deepcopy(cfg)
        with open_dict(job):
            del job["hydra"]
        return load(job, entry.schema), run_dir()

    return _resolved(cfg, read)


def _resolved(cfg: DictConfig, read: Callable[[], T]) -> T:
    """Call ``read`` while Hydra's own part of the configuration is available for interpolation."""
    state = HydraConfig.instance()
    state.set_config(cfg)
    try:
        return read()
    finally:
        state.cfg = None
