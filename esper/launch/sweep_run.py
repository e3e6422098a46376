"""Execution of a sweep: skip finished jobs, hand the rest to a launcher, and print a closing table."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from esper.config.errors import RunError
from esper.config.hydra_private import Callbacks
from esper.launch.entries import Entry
from esper.launch.sweep import SweepJob, mark_refused
from esper.launch.sweep_task import JobWork, SweepTask, this_process
from esper.runtime.preemption import SIGNALS, StopSignals
from esper.runtime.run_folder import RunCondition, RunFolder
from esper.runtime.terminal import say
from esper.views.sweep_table import JobRow, print_sweep

WAITING = {RunCondition.EMPTY: "new", RunCondition.INTERRUPTED: "to be continued", RunCondition.FAILED: "to be retried"}
POLL_SECONDS = 2.0
"""Seconds between counts of finished jobs."""

PATIENT = "hydra_submitit_launcher"
"""Launchers that stop listening to the other jobs when one is lost; they launch jobs one by one."""

ENDING = ("hydra_joblib_launcher", ".LocalLauncher")
"""Launchers that kill or abandon their local jobs when interrupted; the sweep asks the jobs to end, and waits for
them.
"""


def run_sweep(loader: ConfigLoader, master: DictConfig, entry: Entry, work: JobWork, jobs: Sequence[SweepJob]) -> None:
    """Run the unfinished jobs of a sweep, and print the state of all jobs.

    Args:
        loader, master: Hydra's loader, and the configuration of the sweep itself.
        entry: the entry point.
        work: function that runs one job.
        jobs: jobs of the sweep.

    Raises:
        Preempted: the sweep was asked to stop; the same command resumes it.
        RunError: some job has not finished.
    """
    sweep_dir = Path(master.hydra.sweep.dir)
    conditions = {job.number: RunFolder(job.run_dir).condition() for job in jobs if job.refusal is None}
    waiting = [job for job in jobs if conditions.get(job.number) in WAITING]
    _announce(sweep_dir, jobs, conditions)
    for job in jobs:
        if job.refusal is not None:
            mark_refused(job)
    lost: dict[int, str] = {}
    try:
        if waiting:
            lost = _launch(loader, master, entry, work, waiting, len(jobs))
    finally:
        rows = [_row(job, lost.get(job.number)) for job in jobs]
        print_sweep(sweep_dir, rows)
    _require_finished(jobs, rows, sweep_dir)


def _announce(sweep_dir: Path, jobs: Sequence[SweepJob], conditions: dict[int, RunCondition]) -> None:
    names = {**WAITING, RunCondition.FINISHED: "finished", RunCondition.RUNNING: "running elsewhere"}
    counts = Counter(names[condition] for condition in conditions.values())
    counts["refused"] = len(jobs) - len(conditions)
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    say(f"sweep {sweep_dir}: {len(jobs)} job{'s'[: len(jobs) != 1]}, {', '.join(parts)}")
    for job in jobs:
        if job.refusal is not None:
            say(f"job {job.number} ({job.label}) is left out: {job.refusal}")
        for number, label in job.again:
            say(f"job {number} ({label}) is job {job.number} ({job.label}) again, and is run once")


def _launch(
    loader: ConfigLoader, master: DictConfig, entry: Entry, work: JobWork, jobs: Sequence[SweepJob], total: int
) -> dict[int, str]:
    """Submit jobs to the launcher; return its error message for each job that it lost.

    Jobs that run side by side are counted as they end, out of ``total``; jobs in turn say when they begin.
    """
    target = str(master.hydra.launcher._target_)
    in_turn, patient = target.endswith(".BasicLauncher"), PATIENT in target
    context = HydraContext(config_loader=loader, callbacks=Callbacks(master))
    with StopSignals() as signals, tempfile.TemporaryDirectory(prefix="esper-sweep-") as scratch:
        ending = Path(scratch) / "ending"
        task = SweepTask(
            entry=entry.config_name,
            work=work,
            isolated=not patient,
            quiet=not (in_turn or patient),
            total=total if in_turn else None,
            sweep=this_process(),
            ending=ending,
        )
        launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=master)
        ends = any(name in target for name in ENDING)
        counted = contextlib.nullcontext() if in_turn else _counting(jobs, total)
        with counted, signals.deferred(ending.touch) if ends else contextlib.nullcontext():
            if patient:
                side_by_side = int(master.hydra.launcher.get("array_parallelism") or len(jobs))
                return _launch_each(launcher, jobs, side_by_side, sheltered=ends)
            return _launch_some(launcher, jobs)


@contextlib.contextmanager
def _counting(jobs: Sequence[SweepJob], total: int) -> Iterator[None]:
    """Print how many of all jobs are finished, whenever one ends in any process."""
    stopped, left = threading.Event(), [RunFolder(job.run_dir) for job in jobs]

    def count() -> None:
        last = False
        while not last:
            last = stopped.wait(POLL_SECONDS)
            now = [folder for folder in left if folder.condition() is not RunCondition.FINISHED]
            if len(now) < len(left):
                left[:] = now
                say(f"{total - len(now)}/{total} done")

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    try:
        yield
    finally:
        stopped.set()
        counter.join()


def _launch_each(launcher: Launcher, jobs: Sequence[SweepJob], side_by_side: int, *, sheltered: bool) -> dict[int, str]:
    """Launch jobs one by one, several at a time; ``sheltered`` protects them from signals, which the sweep passes
    on.
    """
    lost: dict[int, str] = {}
    turns = threading.Semaphore(side_by_side)

    def launch(job: SweepJob) -> None:
        if sheltered:  # inherited by the processes that this thread starts: Ctrl-C reaches all processes of the sweep
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with turns:
            lost.update(_launch_some(launcher, [job]))

    # Daemons: a sweep that is asked to end does not wait for jobs elsewhere, which continue.
    threads = [threading.Thread(target=launch, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lost


def _launch_some(launcher: Launcher, jobs: Sequence[SweepJob]) -> dict[int, str]:
    try:
        # Numbers are for people; Hydra counts from the first one.
        returns = launcher.launch([list(job.words) for job in jobs], initial_job_idx=jobs[0].number)
    # Every launcher reports a lost job (killed, out of memory, its node gone) in its own way.
    except Exception as error:
        return {job.number: " ".join(f"{type(error).__name__}: {error}".split()) for job in jobs}
    errors = {job.number: ret._return_value for job, ret in zip(jobs, returns, strict=True)}
    return {number: f"{type(error).__name__}: {error}" for number, error in errors.items() if error is not None}


def _row(job: SweepJob, lost: str | None) -> JobRow:
    folder = RunFolder(job.run_dir)
    return JobRow.read(
        folder, number=job.number, label=job.label, configuration=job.configuration, note=job.refusal or lost
    )


def _require_finished(jobs: Sequence[SweepJob], rows: Sequence[JobRow], sweep_dir: Path) -> None:
    refused = sum(job.refusal is not None for job in jobs)
    if sum(row.condition != RunCondition.FINISHED for row in rows) > refused:
        raise RunError(f"not every job of {sweep_dir} is finished; the same command resumes the sweep")
    if refused:
        raise RunError(f"{refused} of {len(jobs)} jobs of {sweep_dir} were refused, as above; the others are finished")
