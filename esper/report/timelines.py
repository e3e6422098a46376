"""Slot timelines of runs: the run's own picture of a held-out host, or one reconstructed from its events."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from esper.report.figures import WIDTH
from esper.report.folders import Run, parse
from esper.report.grouping import Configuration
from esper.report.numbers import Quantity
from esper.runtime.controller_names import LEARNED
from esper.runtime.run_folder import RunFolder, RunState
from esper.telemetry.timeline import KINDS, Episode, SlotTrace
from esper.views.drawing import Figure
from esper.views.timeline_plot import timeline_figure

TAIL_BYTES = 4 << 20
"""Bytes to read from the end of an event file, enough for many episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Picture of one episode of a run: either ``png`` or ``figure``.

    Attributes:
        run: run that the episode belongs to.
        caption: description of the picture.
        png: picture in the run's folder; ``None`` if it has none.
        figure: picture drawn from the run's events; ``None`` if there is a ``png``.
    """

    run: Run
    caption: str
    png: Path | None = None
    figure: Figure | None = None


def timelines(configurations: Sequence[Configuration], score: Quantity) -> list[Timeline]:
    """Return a timeline of each configuration's run in the middle of its scores, where there is one. Those drawn from
    events show the host that most of them have.
    """
    found = [source for item in configurations if (source := _source(item, score)) is not None]
    hosts: dict[str, list[tuple[bool, int]]] = {}
    for source in found:
        for host, (_, episode) in source.episodes.items():
            hosts.setdefault(host, []).append(_kept(episode))
    host = max(hosts, key=lambda name: (len(hosts[name]), sorted(hosts[name], reverse=True)), default="")
    return [_timeline(source, host, named=len(configurations) > 1) for source in found]


class _Source(NamedTuple):
    """A run with a picture or a trace; ``episodes`` are the trace's last whole ones by host, with environments."""

    label: str
    run: Run
    png: Path | None
    slot_ids: tuple[str, ...]
    episodes: Mapping[str, tuple[int, Episode]]


def _source(configuration: Configuration, score: Quantity) -> _Source | None:
    for run in _from_the_middle(configuration.runs, score):
        path = RunFolder(run.path).plots / f"slot_timeline_{LEARNED}.png"
        if path.is_file():
            return _Source(configuration.label, run, path, (), {})
        trace = read_trace(RunFolder(run.path).events, TAIL_BYTES)
        episodes: dict[str, tuple[int, Episode]] = {}
        for environment, episode in sorted(trace.finished.items()):
            ended = episode.ended or {}
            host = f"host {ended['instance']} ({ended.get('family')})" if "instance" in ended else "a host"
            episodes.setdefault(host, (environment, episode))
        if episodes:
            return _Source(configuration.label, run, None, trace.slot_ids, episodes)
    return None


def _timeline(source: _Source, host: str, *, named: bool) -> Timeline:
    """Draw a source; ``named`` begins its caption with the configuration."""
    run, prefix = source.run, f"configuration {source.label}: " if named else ""
    if source.png is not None:
        caption = _sentence(f"{prefix}a held-out host under the controller of {run.path.name}")
        return Timeline(run=run, caption=caption, png=source.png)
    if host not in source.episodes:
        host = max(source.episodes, key=lambda name: _kept(source.episodes[name][1]))
    environment, episode = source.episodes[host]
    caption = _sentence(f"{prefix}{host}, the last whole episode of environment {environment} of {run.path.name}")
    found = episode.timeline(source.slot_ids, _num_epochs(run), LEARNED)
    return Timeline(run=run, caption=caption, figure=timeline_figure(found, WIDTH))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _from_the_middle(runs: Sequence[Run], score: Quantity) -> list[Run]:
    """Sort runs: finished ones first, those with middling scores before the others."""
    values = sorted(value for run in runs if (value := score.of(run)) is not None)
    middle = values[len(values) // 2] if values else 0.0

    def rank(run: Run) -> tuple[bool, float]:
        value = score.of(run)
        return run.state != RunState.FINISHED, float("inf") if value is None else abs(value - middle)

    return sorted(runs, key=rank)


def _kept(episode: Episode) -> tuple[bool, int]:
    return any(change.stage == "FOSSILIZED" for change in episode.changes), len(episode.changes)


def _num_epochs(run: Run) -> int:
    section = run.config.get("env")
    value = section.get("num_epochs") if isinstance(section, dict) else None
    return value if isinstance(value, int) else 1


def read_trace(path: Path, tail_bytes: int) -> SlotTrace:
    """Read the slots of a run from the end of its event file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - tail_bytes)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return SlotTrace()
    trace = SlotTrace(from_start=start == 0)
    for line in lines:  # the first line may be incomplete
        if any(kind.encode() in line for kind in KINDS):
            record = parse(line.decode("utf-8", errors="replace"))
            if record is not None:
                trace.take(record)
    return trace
