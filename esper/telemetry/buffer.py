"""A logger that keeps events in memory until they are fetched, for ranks that write no files."""

from __future__ import annotations

from esper.runtime.state import State
from esper.telemetry.events import Event, from_state, to_state
from esper.telemetry.hub import Logger


class EventBuffer(Logger):
    """Logger of later ranks: keeps events until the first rank collects them, and ignores metrics and stages."""

    name = "buffer"

    def __init__(self) -> None:
        self._events: list[Event] = []

    def drain(self) -> list[Event]:
        """Return all events since the last call."""
        events, self._events = self._events, []
        return events

    def state_dict(self) -> State:
        """Return the buffered events."""
        return {"events": [to_state(event) for event in self._events]}

    def load_state_dict(self, state: State) -> None:
        """Replace the buffered events by those of a saved state."""
        self._events = [from_state(record) for record in state["events"]]

    def event(self, event: Event) -> None:
        """Buffer one event."""
        self._events.append(event)
