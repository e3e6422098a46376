"""Timeline of an episode: stages of every slot, actions and accuracy, as recorded or reconstructed from events.

Axis legend: T = host epochs, S = slots in canonical order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esper.growth import Stage
from esper.growth.slots import SLOT_PATTERN, sort_slot_ids


class OpMark(NamedTuple):
    """An action: its op by name, the slot index that it named (``None`` for WAIT), and whether it was executed."""

    op: str
    slot: int | None
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTimeline:
    """One episode of one host. Row t belongs to host epoch t + 1; ``None`` means unknown.

    Attributes:
        slot_ids: S slot ids.
        stages: ``int [T, S]``, indices of :class:`esper.growth.Stage`, while the epoch was trained.
        blueprints: T rows of S blueprint ids; ``None`` in one means no module.
        alphas: ``float [T, S]`` in the epoch.
        ops: T actions; action t was applied before the epoch.
        val_accuracy: ``float [T]``, fraction of 1.
        twin_accuracy: ``float [T]``, the never-grown twin's, ``None`` if there is no twin.
        scored: val accuracy of the network that is scored at the end, in which FOSSILIZED modules alone act.
        family: host family of the instance.
        instance: index of the instance.
        controller: name of the controller.

    Raises:
        ValueError: lengths disagree.
    """

    slot_ids: tuple[str, ...]
    stages: Tensor
    blueprints: tuple[tuple[str | None, ...], ...]
    alphas: Tensor | None = None
    ops: tuple[OpMark, ...] | None = None
    val_accuracy: Tensor | None = None
    twin_accuracy: Tensor | None = None
    scored: float | None = None
    family: str
    instance: int | str
    controller: str

    def __post_init__(self) -> None:
        shape = tuple(self.stages.shape)
        if len(shape) != 2 or shape[1] != len(self.slot_ids):
            raise ValueError(f"stages must be [T, S] for {len(self.slot_ids)} slot ids, got {list(shape)}")
        if self.alphas is not None and self.alphas.shape != self.stages.shape:
            raise ValueError(f"stages and alphas must share one shape, got {list(shape)}, {list(self.alphas.shape)}")
        columns = {name: getattr(self, name) for name in ("blueprints", "ops", "val_accuracy", "twin_accuracy")}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if set(lengths.values()) != {shape[0]}:
            raise ValueError(f"every row needs one entry: stages have {shape[0]} rows, but {lengths}")


BY_THEMSELVES = frozenset(
    {
        ("GERMINATED", "TRAINING"),
        ("TRAINING", "BLENDING"),
        ("BLENDING", "HOLDING"),
        ("CULLED", "EMBARGOED"),
        ("EMBARGOED", "RESETTING"),
        ("RESETTING", "DORMANT"),
    }
)
"""Automatic stage changes, at the end of a host epoch. The others are caused by an action, before the epoch is
trained.
"""

EMPTY = frozenset({"DORMANT", "CULLED", "EMBARGOED", "RESETTING"})
"""Stages of a slot without a module; an event may still name the removed one."""

KINDS = ("stage_changed", "episode_ended")
"""Kinds of events that a trace reads; a crash ends an episode too."""


class Change(NamedTuple):
    """A slot's change to a stage after ``epochs`` host epochs of its episode."""

    epochs: int
    slot: str
    stage: str
    blueprint: str | None


@dataclass(slots=True)
class Episode:
    """Changes of one episode in order; ``ended`` is its final event, ``None`` while it runs."""

    changes: list[Change] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None

    def stages(self) -> dict[str, Change]:
        """Return the last change of every slot that is not empty."""
        latest = {change.slot: change for change in self.changes}
        return {slot: change for slot, change in latest.items() if change.stage != Stage.DORMANT.name}

    def timeline(self, slot_ids: Sequence[str], num_epochs: int, controller: str) -> EpisodeTimeline:
        """Reconstruct stages and modules epoch by epoch; alphas, ops and accuracy are not in the events.

        Args:
            slot_ids: slot ids of the host, in canonical order.
            num_epochs: length of an episode; a longer one has more rows.
            controller: name of the controller.
        """
        length = max(num_epochs, *(change.epochs for change in self.changes), 1)
        stages = torch.full((length, len(slot_ids)), int(Stage.DORMANT))
        blueprints: list[list[str | None]] = [[None] * len(slot_ids) for _ in range(length)]
        for change in self.changes:  # each lasts until the next one of its slot
            slot = slot_ids.index(change.slot)
            stages[change.epochs :, slot] = Stage.__members__.get(change.stage, Stage.UNKNOWN)
            for row in blueprints[change.epochs :]:
                row[slot] = None if change.stage in EMPTY else change.blueprint
        ended = self.ended or {}
        return EpisodeTimeline(
            slot_ids=tuple(slot_ids),
            stages=stages,
            blueprints=tuple(map(tuple, blueprints)),
            family=str(ended.get("family")),
            instance=str(ended.get("instance")),
            controller=controller,
        )


class SlotTrace:
    """Trace of slots, built from ``stage_changed`` and ``episode_ended`` records of ``events.jsonl``.

    Args:
        from_start: true if the records begin with the run; otherwise the first episode of each environment may lack its
            beginning and is not kept as finished.

    Attributes:
        running: the current episode of each environment that had an event.
        finished: the last complete episode of each.
    """

    def __init__(self, *, from_start: bool = True) -> None:
        self.running: dict[int, Episode] = {}
        self.finished: dict[int, Episode] = {}
        self._slots: set[str] = set()
        self._from_start = from_start
        self._ended: set[int] = set()

    @property
    def slot_ids(self) -> tuple[str, ...]:
        """Slots seen so far, in canonical order."""
        return sort_slot_ids(self._slots)

    def latest(self, environment: int) -> Episode | None:
        """Return the current episode of an environment, or the previous one before the first event of the current
        one.
        """
        running = self.running.get(environment)
        return running if running is not None and running.changes else self.finished.get(environment, running)

    def take(self, record: Mapping[str, Any]) -> None:
        """Add one record; ignore those of other kinds."""
        kind, environment = record.get("kind"), record.get("environment")
        if kind not in KINDS or not isinstance(environment, int):
            return
        episode = self.running.setdefault(environment, Episode())
        if kind == "episode_ended":
            episode.ended = record
            if self._from_start or environment in self._ended:
                self.finished[environment] = episode
            self._ended.add(environment)
            self.running[environment] = Episode()
            return
        before, after, slot, epoch = (record.get(key) for key in ("before", "after", "slot", "epoch"))
        if not (isinstance(after, str) and isinstance(slot, str) and isinstance(epoch, int)):
            return
        if SLOT_PATTERN.fullmatch(slot) is None:
            return
        self._slots.add(slot)
        epochs = epoch - ((before, after) not in BY_THEMSELVES)
        episode.changes.append(Change(epochs, slot, after, record.get("blueprint")))
