"""What every slot of every environment is doing, pieced together from the events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from esper.growth.slots import SLOT_PATTERN, sort_slot_ids

DORMANT, CULLED = "DORMANT", "CULLED"

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
"""Changes at the end of a host epoch. The others are made by an action, before the epoch is trained."""

KINDS = ("stage_changed", "episode_ended")
"""Events that a trace is made of; a crash ends an episode too."""


class Change(NamedTuple):
    """A slot entered a stage after ``epochs`` host epochs of its episode."""

    epochs: int
    slot: str
    stage: str
    blueprint: str | None


@dataclass(slots=True)
class Episode:
    """Changes of one episode in order; ``ended`` is its event, ``None`` while it goes on."""

    changes: list[Change] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None

    def stages(self) -> dict[str, Change]:
        """The last change of every slot that is not empty."""
        latest = {change.slot: change for change in self.changes}
        return {slot: change for slot, change in latest.items() if change.stage != DORMANT}


class SlotTrace:
    """Follows ``stage_changed`` and ``episode_ended`` records of ``events.jsonl``.

    Args:
        from_start: whether the records begin with the run; if not, the first episode of each environment may lack its
            beginning and is not kept as finished.

    Attributes:
        running: the present episode of each environment that had an event.
        finished: the last complete one of each.
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
        """The present episode of an environment, or the last one while nothing has happened in that."""
        running = self.running.get(environment)
        return running if running is not None and running.changes else self.finished.get(environment, running)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in one record; those of other kinds are passed over."""
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
