"""Which keys were swept, and which runs are one configuration with several run seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esper.config import naming
from esper.report.folders import Run
from esper.runtime.run_folder import RunState

IGNORED = frozenset(
    {"seed", "name", "devices", "num_threads", "resume", "env.mapping", "trainer.checkpoint_every", *naming.DERIVED}
)
IGNORED_SECTIONS = ("telemetry.", "wandb.", "checkpoint.", "evaluation.controllers")
"""Keys in which runs of one configuration may differ: where and how they ran, and what they kept of it."""

DERIVED = {
    "slots.max_developing": "slots.num_slots",
    "slots.max_seeds": "slots.num_slots",
    "trainer.num_steps": "env.num_epochs",
}
"""Keys that take the value of another if they are null; a run's configuration says the value. Where they follow it in
all runs they were not swept."""

ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A swept key.

    Attributes:
        key: in full.
        along: other keys that changed whenever it did, such as those of another preset.
        values: in order.
    """

    key: str
    along: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def short(self) -> str:
        """The key's last part."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Runs that differ in nothing but their run seed and where they ran.

    Attributes:
        values: of the swept keys, as text, in the order of the axes.
        label: the same in one line.
        runs: one per run seed, in order of seeds.
        repeats: further runs of the same seeds, which count for nothing: they are no further evidence.
    """

    values: tuple[str, ...]
    label: str
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All runs, sorted.

    Attributes:
        axes: swept keys.
        configurations: in order of their values.
        common: keys on which all runs agree, as text.
    """

    axes: tuple[Axis, ...]
    configurations: tuple[Configuration, ...]
    common: dict[str, str]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of a nested configuration by their full key."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def shown(value: object) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def arrange(runs: Sequence[Run]) -> Sweep:
    """Find what was swept and sort the runs by it."""
    flat = [_compared(run) for run in runs]
    for key, source in DERIVED.items():
        if all(config.get(key) == config.get(source) for config in flat):
            for config in flat:
                config.pop(key, None)
    keys = list(dict.fromkeys(key for config in flat for key in config))
    texts = [{key: shown(config[key]) if key in config else ABSENT for key in keys} for config in flat]
    differing = [key for key in keys if len({text[key] for text in texts}) > 1]
    axes = _axes(differing, texts)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run, text in zip(runs, texts, strict=True):
        groups.setdefault(tuple(text[axis.key] for axis in axes), []).append(run)
    places = [{value: place for place, value in enumerate(axis.values)} for axis in axes]
    order = sorted(groups, key=lambda values: [place[value] for place, value in zip(places, values, strict=True)])
    return Sweep(
        axes=axes,
        configurations=tuple(_configuration(axes, values, groups[values]) for values in order),
        common={key: texts[0][key] for key in keys if key not in differing},
    )


def _compared(run: Run) -> dict[str, Any]:
    return {
        key: value
        for key, value in flatten(run.config).items()
        if key not in IGNORED and not key.startswith(IGNORED_SECTIONS)
    }


def _axes(differing: Sequence[str], texts: Sequence[Mapping[str, str]]) -> tuple[Axis, ...]:
    """One axis for all keys that sort the runs alike."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for key in differing:
        column = [text[key] for text in texts]
        numbering = {value: number for number, value in enumerate(dict.fromkeys(column))}
        alike.setdefault(tuple(numbering[value] for value in column), []).append(key)
    axes = []
    for group in alike.values():
        # Named after a key that all runs have, if there is one.
        first = next((key for key in group if all(text[key] != ABSENT for text in texts)), group[0])
        along = [key for key in group if key != first]
        values = sorted({text[first] for text in texts}, key=_natural)
        axes.append(Axis(key=first, along=tuple(along), values=tuple(values)))
    return tuple(axes)


def _natural(text: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def _configuration(axes: Sequence[Axis], values: tuple[str, ...], runs: Sequence[Run]) -> Configuration:
    shorts = [axis.short for axis in axes]
    names = [short if shorts.count(short) == 1 else axis.key for axis, short in zip(axes, shorts, strict=True)]
    label = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    chosen: dict[object, Run] = {}
    repeats = []
    # Of several runs with one seed the one that got farthest counts.
    for run in sorted(runs, key=_progress):
        key = run.path if run.seed is None else run.seed
        if key in chosen:
            repeats.append(chosen[key])
        chosen[key] = run
    own = sorted(chosen.values(), key=lambda run: (run.seed is None, run.seed or 0, str(run.path)))
    return Configuration(
        values=values,
        label=label or "all runs",
        runs=tuple(own),
        repeats=tuple(sorted(repeats, key=lambda run: run.path)),
    )


def _progress(run: Run) -> tuple[bool, int, str, str]:
    return run.state == RunState.FINISHED, len(run.metrics), str(run.status.get("updated", "")), str(run.path)
