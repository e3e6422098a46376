"""Start of a run: from the beginning, from its last checkpoint, or not at all because it has finished."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from esper.config import to_plain
from esper.config.identity import FREE_ON_RESUME, differences
from esper.config.root import Config
from esper.experiment.checkpoint import CheckpointError, checkpoint_path, config_of, load_checkpoint
from esper.experiment.resume import resumed_config
from esper.experiment.transfer import check_source
from esper.runtime.devices import device_name, intra_op_threads
from esper.runtime.ranks import Ranks
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Starting point of a run.

    Attributes:
        config: configuration of the run.
        reopens: true if the folder holds the run already.
        finished: true if nothing is left to do.
        record: checkpoint to resume from; ``None`` = from the beginning.
        source: checkpoint whose policy a new run starts from.
    """

    config: Config
    reopens: bool = False
    finished: bool = False
    record: dict[str, Any] | None = None
    source: dict[str, Any] | None = None

    @property
    def training(self) -> State:
        """Training state in the checkpoint."""
        assert self.record is not None, "a run that starts afresh has no state"
        training: State = self.record["training"]
        return training

    def same_ranks(self, ranks: Ranks) -> bool:
        """Return whether the checkpoint was saved by the same number of ranks; true for a new run."""
        return self.record is None or len(self.training["ranks"]) == ranks.size

    def set_threads(self, ranks: Ranks) -> None:
        """Use as many threads as the run had, since sums depend on it; for a new run, the configured number."""
        threads = intra_op_threads(self.config.num_threads, ranks.local_size)
        if self.record is not None and self.same_ranks(ranks):
            before = self.record["config"]["num_threads"]
            if before == self.config.num_threads:
                threads = self.training["ranks"][ranks.rank]["num_threads"]
        torch.set_num_threads(threads)

    def lines(self, ranks: Ranks, device: torch.device) -> list[str]:
        """Return messages for the user, printed by the first rank."""
        if not self.reopens:
            return []
        if self.record is None:
            return ["resuming: no checkpoint yet, so from the beginning"]
        lines = [f"resuming after iteration {self.record['iteration']}{_within(self.training)}"]
        if not self.same_ranks(ranks):
            before = len(self.training["ranks"])
            lines.append(
                f"{ranks.size} rank{'s'[: ranks.size != 1]} instead of {before}: environments are redistributed, and "
                "numbers will differ from those of an uninterrupted run"
            )
        before, now = self.training["ranks"][0].get("device"), device_name(device)
        if before not in (None, now):
            lines.append(f"on {now} instead of {before}: numbers will differ from those of an uninterrupted run")
        return lines


def _within(training: State) -> str:
    step = training["ranks"][0]["buffer"]["reward"].shape[1]
    return f" and {step} steps" if step else ""


def find_start(folder: RunFolder, config: Config) -> Start:
    """Determine the starting point that ``resume`` requests in this folder.

    Raises:
        UsageError: the run there cannot be resumed as requested.
        CheckpointError: its last checkpoint cannot be used.
    """
    if config.resume is None or not folder.holds_run:
        return Start(config=replace(config, resume=None), source=_source(config))
    config = resumed_config(folder, config)
    path = folder.last_checkpoint
    record = load_checkpoint(path) if path.exists() or path.is_symlink() else None
    if record is None:
        _require_none_lost(folder)
    else:
        if "training" not in record:
            raise CheckpointError(f"{path} holds a policy only, no training state to resume from")
        foreign = differences(to_plain(config_of(record, path)), to_plain(config), FREE_ON_RESUME)
        if foreign:
            raise CheckpointError(f"{path} is of another run: it has {'; '.join(foreign)}")
    done = record is None or record["iteration"] >= config.trainer.num_iterations
    finished = done and folder.state is RunState.FINISHED
    source = None if record is not None or finished else _source(config)
    return Start(config=config, reopens=True, finished=finished, record=record, source=source)


def _require_none_lost(folder: RunFolder) -> None:
    """Refuse to start again in a folder whose run has iterations but no last checkpoint."""
    kept = sorted(folder.checkpoints.glob("iteration-*.pt"))
    if len(kept) > 1:  # a run that is killed while it writes its first checkpoint may leave one without the other
        raise CheckpointError(
            f"{folder.last_checkpoint} is missing, from which the run would resume: restore it, or start a new run "
            f"from the policy of {kept[-1].name} with checkpoint.path={kept[-1]}"
        )


def _source(config: Config) -> dict[str, Any] | None:
    """Read the checkpoint named by ``checkpoint.path``, if any."""
    if config.checkpoint.path is None:
        return None
    source = load_checkpoint(checkpoint_path(config.checkpoint.path))
    check_source(source, config)
    return source
