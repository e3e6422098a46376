"""Mirroring of a run to Weights & Biases. The run folder is the primary record; a failure here affects only the mirror.

There is one W&B run per run folder, whose id is stored in the folder, so that a resumed run continues the same W&B run.
``wandb`` is imported only when needed.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.runtime.files import write_atomic
from esper.runtime.options import WandbMode
from esper.runtime.records import Metrics, read_jsonl
from esper.runtime.run_folder import RunFolder, RunState, final_state
from esper.runtime.terminal import say
from esper.telemetry.events import Anomaly, Event, StageChanged
from esper.telemetry.hub import Logger
from esper.telemetry.lifecycle import PlainTable, anomaly_counts, changes_table, lifecycle_tables
from esper.telemetry.results import best_numbers, closing_numbers, controllers_table

if TYPE_CHECKING:
    import wandb

STEP = "iteration"
CHECKPOINT = "last.pt"
NOT_IN_IDS = re.compile(r"[^\w.-]")
MAX_NAME = 100
"""Largest number of characters of a run's name in its id; W&B allows ids of up to 128."""


def check_online() -> None:
    """Refuse ``wandb.mode=online`` without a login, before the run starts.

    Raises:
        ValueError: there is no login; the message explains how to log in.
    """
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    with contextlib.suppress(wandb.errors.UsageError, wandb.errors.AuthenticationError):
        if wandb.login(prompt=False, verify=False):
            return
    raise ValueError(
        "wandb.mode: 'online' needs an account, and nobody is logged in: run wandb login (or set WANDB_API_KEY), or "
        "choose from disabled, offline"
    )


def run_id(folder: RunFolder, name: str) -> str:
    """Return the W&B id of a run folder: its name with a random suffix, created once and stored in the folder."""
    file = folder.path / "wandb" / "run-id"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, f"{NOT_IN_IDS.sub('-', name)[:MAX_NAME]}-{secrets.token_hex(4)}\n")
    return file.read_text(encoding="utf-8").strip()


class WandbLogger(Logger):
    """Logger that sends metrics to W&B, without values that are ``None`` or not finite, and anomalies.

    The summary counts anomalies, and the first of each name is an alert.

    Args:
        run: a started W&B run, which the caller finishes.
        anomalies: number of anomalies so far, by name.
        timeline_every: iterations between two that are sent with a table of their stage changes.
    """

    name = "wandb"

    def __init__(self, run: wandb.Run, anomalies: Mapping[str, int], timeline_every: int) -> None:
        self._run = run
        self._anomalies = Counter(anomalies)
        self._timeline_every = timeline_every
        self._changes: list[StageChanged] = []
        self.latest = 0

    def event(self, event: Event) -> None:
        """Keep a stage change; count an anomaly."""
        if isinstance(event, StageChanged):
            self._changes.append(event)
        elif isinstance(event, Anomaly):
            self._anomalies[event.name] += 1
            self._run.summary.update({f"anomalies/{event.name}": self._anomalies[event.name]})
            if self._anomalies[event.name] == 1:
                text = f"iteration {event.iteration}: {event.message}"
                self._run.alert(f"{event.name} in {self._run.name}", text, level="WARN")

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Send one iteration."""
        sent: dict[str, Any] = {
            key: value for key, value in metrics.items() if value is not None and math.isfinite(value)
        }
        if self._changes and iteration % self._timeline_every == 0:
            sent["timeline/iteration"] = _table(changes_table(self._changes))
        self._changes.clear()
        self._run.log({STEP: iteration, **sent}, step=iteration, commit=True)
        self.latest = iteration


def _warn(message: str) -> None:
    say(f"warning: W&B: {message}", stderr=True)


@contextlib.contextmanager
def mirrored(
    folder: RunFolder,
    *,
    name: str,
    job_type: str,
    config: Mapping[str, Any],
    mode: WandbMode | None,
    project: str,
    entity: str | None,
    group: str | None,
    tags: Sequence[str],
    timeout: float,
    checkpoint: bool = False,
    timeline_every: int = 1,
    tell: Callable[[str], None] = say,
    warn: Callable[[str], None] = _warn,
) -> Iterator[list[Logger]]:
    """Mirror a run to W&B within this block, and finish the W&B run however the block ends.

    Args:
        folder: folder of the run; W&B's own files go to ``wandb/`` in it.
        name: name of the run.
        job_type: train or evaluate.
        config: effective configuration, plain values.
        mode: connection, ``None`` is none. If the server cannot be reached, online becomes offline.
        project, entity, group, tags: W&B's fields of the run.
        timeout: seconds to wait for the server, at the start and at the end.
        checkpoint: send the last checkpoint of a finished run as an artifact.
        timeline_every: iterations between two tables of stage changes.
        tell: function that is told the run's address, or the command that sends it.
        warn: function that reports errors, once each.

    Yields:
        loggers for the hub: one, or none if mirroring is disabled or could not be started.
    """
    if mode in (None, WandbMode.disabled):
        yield []
        return
    try:
        identity = {"id": run_id(folder, name), "name": name, "project": project, "entity": entity, "group": group}
        own = {"job_type": job_type, "tags": list(tags), "config": dict(config), "dir": str(folder.path)}
        run = _start(identity | own, mode, timeout, warn)
    # An unwritable folder or a broken library must not stop a run: mirroring is optional.
    except Exception as error:
        warn(f"cannot be started, this run is not mirrored ({_line(error)})")
        run = None
    if run is None:
        yield []
        return
    if not run.offline:
        tell(f"W&B run {run.url}")
    logger = WandbLogger(run, anomaly_counts(folder.events), timeline_every)
    try:
        yield [logger]
    except BaseException as error:
        state = RunState.FINISHED if folder.state is RunState.FINISHED else final_state(error)
        _end(run, logger, folder, state, checkpoint, tell, warn)
        raise
    _end(run, logger, folder, RunState.FINISHED, checkpoint, tell, warn)


def _start(settings: Mapping[str, Any], mode: WandbMode, timeout: float, warn: Callable[[str], None]) -> wandb.Run:
    """Start or continue a W&B run, offline if online fails. Raises W&B's error if that fails too."""
    import wandb

    try:
        sweep = wandb.setup().settings.sweep_id  # an agent of W&B's own sweeps has chosen the id
        own = {key: value for key, value in settings.items() if key != "id" or sweep is None}
        run = wandb.init(
            **own,
            mode=mode.value,
            resume="allow" if mode == WandbMode.online else None,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="wrap",
                save_code=False,
                init_timeout=timeout,
                finish_timeout=timeout,
                finish_timeout_raises=True,
            ),
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
    # What the service raises when it cannot be reached is not a closed list.
    except Exception as error:
        if mode != WandbMode.online:
            raise
        warn(f"cannot be reached ({_line(error)}): this run is kept for wandb sync {settings['dir']}/wandb/offline-*")
        wandb.teardown()  # W&B's service still holds the id
        return _start(settings, WandbMode.offline, timeout, warn)
    return run


def _end(
    run: wandb.Run,
    logger: WandbLogger,
    folder: RunFolder,
    state: RunState,
    checkpoint: bool,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Send the results of a run, and finish it as successful, failed, or preempted."""
    try:
        run.summary.update(best_numbers(_records(folder)))
        if state is RunState.FINISHED:
            _send_closing(run, max(logger.latest, _iterations(folder)), folder)
            if checkpoint:
                _send_checkpoint(run, folder)
        elif state is RunState.PREEMPTED:
            run.mark_preempting()
    except Exception as error:
        warn(f"the closing tables were not sent ({_line(error)})")
    try:
        run.finish(exit_code=0 if state is RunState.FINISHED else 1)
    except Exception as error:
        warn(f"not everything was sent ({_line(error)}): wandb sync {run.settings.sync_dir} sends it later")
    else:
        if run.offline:
            tell(f"W&B: wandb sync {run.settings.sync_dir} sends this run")


def _iterations(folder: RunFolder) -> int:
    """Count the iterations of a run, including those before this process, which may only have done the comparison."""
    records = _records(folder)
    return int(records[-1]["iteration"]) if records else 0


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    return read_jsonl(folder.metrics) if folder.metrics.exists() else []


def _send_closing(run: wandb.Run, latest: int, folder: RunFolder) -> None:
    import wandb

    result = json.loads(folder.result.read_text(encoding="utf-8"))
    tables = {"closing/controllers": controllers_table(result), **lifecycle_tables(folder.events)}
    media: dict[str, Any] = {name: _table(table) for name, table in tables.items()}
    for path in sorted(folder.plots.glob("*.png")):
        media[f"plots/{path.stem}"] = wandb.Image(str(path))
    # A step of its own: the last iteration's has been sent.
    run.log({STEP: latest, **media}, step=latest + 1, commit=True)
    run.summary.update(closing_numbers(result))


def _table(table: PlainTable) -> wandb.Table:
    import wandb

    return wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows], allow_mixed_types=True)


def _send_checkpoint(run: wandb.Run, folder: RunFolder) -> None:
    import wandb

    path: Path = folder.checkpoints / CHECKPOINT
    artifact = wandb.Artifact(f"controller-{run.id}", type="model")
    artifact.add_file(str(path))
    run.log_artifact(artifact)


def _line(error: Exception) -> str:
    """Format an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
