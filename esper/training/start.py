"""How a run starts: afresh, from its last checkpoint, or not at all because it has finished."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from esper.config import to_plain
from esper.config.root import Config
from esper.experiment.checkpoint import CheckpointError, checkpoint_path, config_of, load_checkpoint
from esper.experiment.resume import FREE, differences, require_continuable
from esper.experiment.transfer import check_source
from esper.runtime.devices import device_name, intra_op_threads
from esper.runtime.ranks import Ranks
from esper.runtime.run_folder import RunFolder, RunState
from esper.runtime.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run starts.

    Attributes:
        config: with which.
        reopens: whether the folder holds the run already.
        finished: whether nothing is left to do.
        record: checkpoint to go on from; ``None`` = from the beginning.
        source: checkpoint whose policy a new run starts from.
    """

    config: Config
    reopens: bool = False
    finished: bool = False
    record: dict[str, Any] | None = None
    source: dict[str, Any] | None = None

    @property
    def training(self) -> State:
        """State of training at the checkpoint."""
        assert self.record is not None, "a run that starts afresh has no state"
        training: State = self.record["training"]
        return training

    def same_ranks(self, ranks: Ranks) -> bool:
        """Whether the run had as many ranks before."""
        return self.record is None or len(self.training["ranks"]) == ranks.size

    def set_threads(self, ranks: Ranks) -> None:
        """As many threads as the run had, since sums depend on it; otherwise as many as the configuration says."""
        threads = intra_op_threads(self.config.num_threads, ranks.local_size)
        if self.record is not None and self.same_ranks(ranks):
            before = self.record["config"]["num_threads"]
            if before == self.config.num_threads:
                threads = self.training["ranks"][ranks.rank]["num_threads"]
        torch.set_num_threads(threads)

    def lines(self, ranks: Ranks, device: torch.device) -> list[str]:
        """What a person should know about it, said by the first rank on its device."""
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


def how_to_start(folder: RunFolder, config: Config) -> Start:
    """What ``resume`` asks for in this folder.

    Raises:
        UsageError: the run there cannot go on as asked.
        CheckpointError: its last checkpoint cannot be used.
    """
    if config.resume is None or not folder.holds_run:
        return Start(config=replace(config, resume=None), source=_source(config))
    config = require_continuable(folder, config)
    path = folder.last_checkpoint
    record = load_checkpoint(path) if path.exists() or path.is_symlink() else None
    if record is None:
        _require_none_lost(folder)
    else:
        if "training" not in record:
            raise CheckpointError(f"{path} holds a policy only, no state of training to go on from")
        foreign = differences(to_plain(config_of(record, path)), config, FREE)
        if foreign:
            raise CheckpointError(f"{path} is of another run: it has {'; '.join(foreign)}")
    done = record is None or record["iteration"] >= config.trainer.num_iterations
    finished = done and folder.state is RunState.FINISHED
    source = None if record is not None or finished else _source(config)
    return Start(config=config, reopens=True, finished=finished, record=record, source=source)


def _require_none_lost(folder: RunFolder) -> None:
    """Refuse to begin again where a run has gone on for long, and only what it goes on from is gone."""
    kept = sorted(folder.checkpoints.glob("iteration-*.pt"))
    if len(kept) > 1:  # a run that is killed while it writes its first checkpoint may leave one without the other
        raise CheckpointError(
            f"{folder.last_checkpoint} is gone, which the run would go on from: bring it back, or start a new run from "
            f"the policy of {kept[-1].name} with checkpoint.path={kept[-1]}"
        )


def _source(config: Config) -> dict[str, Any] | None:
    """What ``checkpoint.path`` names, if anything."""
    if config.checkpoint.path is None:
        return None
    source = load_checkpoint(checkpoint_path(config.checkpoint.path))
    check_source(source, config)
    return source
