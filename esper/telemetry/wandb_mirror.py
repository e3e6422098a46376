"""The mirror of a run in Weights & Biases. The run folder is the truth; whatever fails here costs only the mirror.

One W&B run per run folder: its id is made once and kept there, so that a resumed run goes on as the same one. W&B is
imported only when it is wanted.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from esper.runtime.files import write_atomic
from esper.runtime.records import Metrics, read_jsonl
from esper.runtime.run_folder import RunFolder, RunState, final_state
from esper.runtime.terminal import say
from esper.telemetry.closing_tables import PlainTable, closing_numbers, controllers_table, lifecycle_tables
from esper.telemetry.events import Event
from esper.telemetry.hub import Logger

if TYPE_CHECKING:
    import wandb

STEP = "iteration"
OFFLINE = "offline"
ONLINE = "online"
Mode: TypeAlias = Literal["online", "offline"]
DISABLED = "disabled"
CHECKPOINT = "last.pt"
NOT_IN_IDS = re.compile(r"[^\w.-]")
MAX_NAME = 100
"""Letters of a run's name that go into its id: W&B takes ids of up to 128."""


def check_online() -> None:
    """Refuse ``wandb.mode=online`` where nobody is logged in: better now than in the middle of the night.

    Raises:
        ValueError: says how to log in.
    """
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    with contextlib.suppress(wandb.errors.UsageError, wandb.errors.AuthenticationError):
        if wandb.login(prompt=False, verify=False):
            return
    raise ValueError(
        "wandb.mode: 'online' needs an account, and nobody is logged in: say wandb login (or set WANDB_API_KEY), or "
        "choose from disabled, offline"
    )


def run_id(folder: RunFolder, name: str) -> str:
    """The id of a run folder in W&B: its name with something random behind it, made once and kept in the folder."""
    file = folder.path / "wandb" / "run-id"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, f"{NOT_IN_IDS.sub('-', name)[:MAX_NAME]}-{secrets.token_hex(4)}\n")
    return file.read_text(encoding="utf-8").strip()


class WandbLogger:
    """Sends metrics; ``None`` and what is not finite were not measured, and are left out.

    Args:
        run: a started W&B run, which others finish.
    """

    name = "wandb"

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        self.latest = 0

    def event(self, event: Event) -> None:
        """Events go in tables, at the end."""

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """Send one iteration."""
        measured = {key: value for key, value in metrics.items() if value is not None and math.isfinite(value)}
        self._run.log({STEP: iteration, **measured}, step=iteration, commit=True)
        self.latest = iteration

    def stage(self, message: str, done: int, total: int) -> None:
        """Preparations are not recorded."""

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self, status: str) -> None:
        """Nothing: the run goes on until its closing tables are there."""


def _warn(message: str) -> None:
    say(f"warning: W&B: {message}", stderr=True)


@contextlib.contextmanager
def mirrored(
    folder: RunFolder,
    *,
    name: str,
    job_type: str,
    config: Mapping[str, Any],
    mode: str,
    project: str,
    entity: str | None,
    group: str | None,
    tags: Sequence[str],
    timeout: float,
    checkpoint: bool = False,
    warn: Callable[[str], None] = _warn,
) -> Iterator[list[Logger]]:
    """Mirror what happens in this block, and finish the W&B run however the block ends.

    Args:
        folder: of the run; W&B's own files go to ``wandb/`` in it.
        name: of the run.
        job_type: train or evaluate.
        config: effective configuration, plain values.
        mode: ``disabled``, ``offline`` or ``online``. A server that cannot be reached turns online into offline.
        project, entity, group, tags: where the run is found.
        timeout: seconds to wait for the server, at the start and at the end.
        checkpoint: send the last checkpoint of a finished run as an artifact.
        warn: how to report what goes wrong, once each.

    Yields:
        loggers for the hub: one, or none if the mirror is disabled or could not be started.
    """
    if mode == DISABLED:
        yield []
        return
    try:
        identity = {"id": run_id(folder, name), "name": name, "project": project, "entity": entity, "group": group}
        own = {"job_type": job_type, "tags": list(tags), "config": dict(config), "dir": str(folder.path)}
        run = _start(identity | own, mode, timeout, warn)
    # A folder that cannot be written, a library that is broken: no fault of what only watches may cost a run.
    except Exception as error:
        warn(f"cannot be started, this run is not mirrored ({_line(error)})")
        run = None
    if run is None:
        yield []
        return
    logger = WandbLogger(run)
    try:
        yield [logger]
    except BaseException as error:
        state = RunState.FINISHED if folder.state is RunState.FINISHED else final_state(error)
        _end(run, logger, folder, state, checkpoint, warn)
        raise
    _end(run, logger, folder, RunState.FINISHED, checkpoint, warn)


def _start(settings: Mapping[str, Any], mode: str, timeout: float, warn: Callable[[str], None]) -> wandb.Run:
    """Start or continue a W&B run; offline where online cannot be. Raises what W&B raises if that fails too."""
    import wandb

    try:
        sweep = wandb.setup().settings.sweep_id  # an agent of W&B's own sweeps has chosen the id
        own = {key: value for key, value in settings.items() if key != "id" or sweep is None}
        run = wandb.init(
            **own,
            mode=cast(Mode, mode),
            resume="allow" if mode == ONLINE else None,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
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
        if mode != ONLINE:
            raise
        warn(f"cannot be reached ({_line(error)}): this run is kept for wandb sync {settings['dir']}/wandb/offline-*")
        wandb.teardown()  # W&B's service still holds the id
        return _start(settings, OFFLINE, timeout, warn)
    return run


def _end(
    run: wandb.Run,
    logger: WandbLogger,
    folder: RunFolder,
    state: RunState,
    checkpoint: bool,
    warn: Callable[[str], None],
) -> None:
    """Send what a run leaves behind, and finish it: successful, failed, or to be continued."""
    try:
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


def _iterations(folder: RunFolder) -> int:
    """Iterations of a run, those before this process included: it may have had only the comparison left to do."""
    records = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return int(records[-1]["iteration"]) if records else 0


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
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
