"""Planning of a sweep: its jobs, each in a folder determined by its configuration, so that the same command resumes
them.

The folder of a sweep is named after the swept keys, that of a job after its swept values, its seed, and a hash of its
whole configuration.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from esper.config.errors import RunError, UsageError, explain, refused
from esper.config.hydra_private import BasicSweeper
from esper.config.identity import digest
from esper.config.naming import JobName, as_typed, job_name, readable
from esper.config.store import to_plain
from esper.config.words import quoted
from esper.experiment.shortage import shortages
from esper.launch.files import Loader
from esper.runtime.run_folder import RunCondition, RunFolder, RunState

MAX_JOBS = 10_000
"""Largest number of jobs in a sweep; all are composed and checked before the first one runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One job of a sweep.

    Attributes:
        number: number of the job from 0, in the order of the sweep.
        identity: equal for jobs that compute the same in the same folder.
        words: overrides that define it, its name included.
        label: swept values in readable form.
        configuration: those of them that are no run seeds, equal in jobs of one configuration.
        run_dir: run folder of the job.
        refusal: reason why it cannot run; ``None`` if it can.
        again: number and label of later duplicates, which do not run.
    """

    number: int
    identity: str
    words: tuple[str, ...]
    label: str
    configuration: str
    run_dir: Path
    refusal: str | None = None
    again: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Planner that lists the jobs of a sweep and checks which of them can run.

    Attributes:
        loader, master: Hydra's loader, and the configuration of the sweep itself.
        schema: dataclass of a job's configuration.
        load: converts a composed configuration into the dataclass.
        folder_of: returns the run folder of a composed configuration.
        check: raises ``ValueError`` for a configuration that cannot run.
    """

    loader: Loader
    master: DictConfig
    schema: type[Any]
    load: Callable[[DictConfig], Any]
    folder_of: Callable[[DictConfig], Path]
    check: Callable[[Any], None]

    def plan(self) -> list[SweepJob]:
        """List all jobs without duplicates, with a reason for those that cannot run.

        Raises:
            UsageError: no job can run, or two would share a folder.
        """
        alike: dict[str, list[SweepJob]] = {}
        files = self._files_of_params()
        for number, (words, swept) in enumerate(self._split()):
            job = self._job(number, words, swept)
            if job.refusal is not None:
                job = replace(job, refusal=_with_file(job.refusal, swept, files))
            alike.setdefault(job.identity, []).append(job)
        jobs = [
            replace(first, again=tuple((other.number, other.label) for other in others))
            for first, *others in alike.values()
        ]
        if all(job.refusal is not None for job in jobs):
            raise UsageError(jobs[0].refusal or "")
        taken: dict[Path, int] = {}
        for job in jobs:
            if job.run_dir in taken:
                raise UsageError(
                    f"jobs {taken[job.run_dir]} and {job.number} of this sweep would share the run folder "
                    f"{job.run_dir}: leave name and hydra.sweep.subdir to their defaults, which differ from job to job"
                )
            taken[job.run_dir] = job.number
        return jobs

    def _split(self) -> list[tuple[list[str], list[str]]]:
        """Return the overrides of each job, and those among them that vary between jobs.

        Swept values come from the command line, and from ``hydra.sweeper.params`` of a sweep preset.
        """
        hydra = self.master.hydra
        preset = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
        parser = OverridesParser.create(self.loader)
        overrides = []
        for word in preset:
            try:
                overrides += parser.parse_overrides([word])
            except HydraException as error:
                where = f"hydra.sweeper.params.{word.partition('=')[0]}"
                raise UsageError(self.loader.located(f"{where}: {explain(error, self.schema)}")) from error
        overrides += parser.parse_overrides(list(hydra.overrides.task))
        sweeps = [word for word in overrides if word.is_sweep_override()]
        check_size(sweeps)
        swept = {word.get_key_element() for word in sweeps}
        jobs = BasicSweeper.split_arguments(overrides, None)[0]
        return [(list(job), [word for word in job if word.partition("=")[0] in swept]) for job in jobs]

    def _files_of_params(self) -> dict[str, str]:
        """Return the file that sweeps over each key."""
        found = {}
        for key in self.master.hydra.sweeper.params or {}:
            where = f"hydra.sweeper.params.{key}"
            found[key] = self.loader.located(where).removesuffix(where)
        return found

    def _job(self, number: int, words: Sequence[str], swept: Sequence[str]) -> SweepJob:
        label, named = " ".join(swept), list(words)
        configuration = " ".join(word for word in swept if not word.startswith("seed="))
        try:
            with refused(self.schema, self.loader.located):
                cfg = self.loader.load_sweep_config(self.master, named)
                config = self.load(cfg)
                with shortages(config, begun=False):
                    self.check(config)
        except (UsageError, RunError) as error:
            letters_of_words = digest(*sorted(words))
            return SweepJob(
                number=number,
                identity=letters_of_words,
                words=tuple(words),
                label=label,
                configuration=configuration,
                run_dir=Path(self.master.hydra.sweep.dir) / f"{readable(swept)}refused-{letters_of_words}",
                refusal=str(error),
            )
        plain = to_plain(config)
        if not any(word.lstrip("+").startswith("name=") for word in words):
            name = job_name(plain, [self._spelled(word) for word in swept])
            cfg.name = str(name)
            cfg.name = _known_as(self.folder_of(cfg), name) or str(name)
            named.append(f"name={quoted(cfg.name)}")
            del plain["name"]
        return SweepJob(
            number=number,
            identity=json.dumps(plain, sort_keys=True),
            words=tuple(named),
            label=label,
            configuration=configuration,
            run_dir=self.folder_of(cfg),
        )

    def _spelled(self, word: str) -> str:
        """Normalise the value in an override: ``lr=1e-3`` and ``lr=0.001`` are the same."""
        [parsed] = OverridesParser.create(self.loader).parse_overrides([word])
        return f"{parsed.key_or_group}={as_typed(parsed.value())}"


def _with_file(refusal: str, swept: Sequence[str], files: Mapping[str, str]) -> str:
    """Add to a refusal the file that sweeps over the key in question."""
    for key in (word.partition("=")[0] for word in swept):
        if key in files and re.search(rf"(^|'){re.escape(key)}\b", refusal):
            return files[key] + refusal
    return refusal


def _known_as(folder: Path, name: JobName) -> str | None:
    """Return the name of a sibling folder in which the same job has run before, preferring a finished one."""
    if folder.exists():
        return None
    found = [RunFolder(path) for path in folder.parent.glob(f"*{name.end}") if name.means(path.name)]
    begun = [run for run in found if run.holds_run]
    best = min(begun, key=lambda run: (run.condition() is not RunCondition.FINISHED, run.path.name), default=None)
    return None if best is None else best.path.name


def check_size(sweeps: Sequence[Override]) -> None:
    """Refuse sweeps without a job, or with too many, before their jobs are listed."""
    total = 1
    for word in sweeps:
        count = _num_values(word)
        if count == 0:
            raise UsageError(f"{word.input_line} has no value, so that this sweep has no job: name at least one")
        total *= count
        if total > MAX_JOBS:
            raise UsageError(
                f"this sweep has {total} jobs or more at {word.input_line}: a sweep has at most {MAX_JOBS}"
            )


def _num_values(word: Override) -> int:
    """Count the values that an override sweeps over, without generating them."""
    asked = word.value()
    if isinstance(asked, IntervalSweep):
        raise UsageError(f"{word.input_line}: an interval has no values of its own: use range(...) or choice(...)")
    if not isinstance(asked, RangeSweep):
        return sum(1 for _ in word.sweep_iterator())
    assert asked.start is not None, "the parser asks for both ends"
    assert asked.stop is not None, "the parser asks for both ends"
    if not all(map(math.isfinite, (asked.start, asked.stop, asked.step))) or asked.step == 0:
        raise UsageError(f"{word.input_line}: a range has finite ends, and steps that are not 0")
    return max(0, math.ceil((asked.stop - asked.start) / asked.step))


def mark_refused(job: SweepJob) -> None:
    """Make a folder for a job that cannot run, so that reports count it among the failures."""
    job.run_dir.mkdir(parents=True, exist_ok=True)
    RunFolder(job.run_dir).status(RunState.FAILED, overrides=list(job.words), traceback=job.refusal)
