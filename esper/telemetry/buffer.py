"""A logger that keeps events until somebody else takes them: how ranks that write nothing report."""

from __future__ import annotations

from esper.runtime.records import Metrics
from esper.runtime.state import State
from esper.telemetry.events import Event, from_state, to_state


class EventBuffer:
    """Keeps events in memory; metrics and stages are the first rank's business."""

    name = "buffer"

    def __init__(self) -> None:
        self._events: list[Event] = []

    def drain(self) -> list[Event]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events

    def state_dict(self) -> State:
        """The events that wait."""
        return {"events": [to_state(event) for event in self._events]}

    def load_state_dict(self, state: State) -> None:
        """Have these events wait, and no others."""
        self._events = [from_state(record) for record in state["events"]]

    def event(self, event: Event) -> None:
        """Keep one event."""
        self._events.append(event)

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        """The first rank logs them."""

    def flush(self) -> None:
        """Events wait for :meth:`drain`."""

    def stage(self, message: str, done: int, total: int) -> None:
        """The first rank shows them."""

    def close(self, status: str) -> None:
        """Nothing is open."""
