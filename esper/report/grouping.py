"""Grouping of runs: swept keys, and runs of one configuration with several run seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.config import identity
from esper.report.folders import Run
from esper.report.refusals import stated
from esper.runtime.run_folder import RunState

FOLLOWS = {
    "slots.max_developing": "slots.num_slots",
    "slots.max_seeds": "slots.num_slots",
    "trainer.num_steps": "env.num_epochs",
}
"""Keys that take the value of another key if they are null. A run's configuration holds the value; a key that equals
the other one in all runs was not swept.
"""

ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A swept key.

    Attributes:
        key: the full key.
        along: other keys that changed together with it, such as those of another preset.
        values: values of the key in order, as text.
    """

    key: str
    along: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def short(self) -> str:
        """Last part of the key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Runs that differ only in run seed and devices.

    Attributes:
        values: values of the swept keys, as text, in the order of the axes.
        label: these values in one line.
        runs: a run per run seed, in order of seeds.
        repeats: further runs of the same seeds, which are ignored because they are no further evidence.
    """

    values: tuple[str, ...]
    label: str
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All runs, grouped by configuration.

    Attributes:
        axes: swept keys.
        configurations: configurations in order of their values.
        common: keys on which all runs agree, as text.
    """

    axes: tuple[Axis, ...]
    configurations: tuple[Configuration, ...]
    common: dict[str, str]


def shown(value: object) -> str:
    """Format a value as on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def arrange(runs: Sequence[Run]) -> Sweep:
    """Find the swept keys and group the runs by them."""
    texts = _texts(runs)
    keys = list(texts[0]) if texts else []
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


def _texts(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the values of each run, as text, all with the same keys.

    A refused run sets only the keys in its arguments. It has the other runs' value of any other key, if they agree;
    these have its value of a key that only refused runs set, such as a preset, if those agree.
    """
    found = [stated(run.overrides) if run.overrides else _counted(run) for run in runs]
    whole, refused = (
        [config for run, config in zip(runs, found, strict=True) if bool(run.overrides) is wanted]
        for wanted in (False, True)
    )
    for key, source in FOLLOWS.items():
        follows = all(config.get(key) == config.get(source) for config in whole)
        if follows and not any(key in config for config in refused):
            for config in whole:
                config.pop(key, None)
    own = dict.fromkeys(key for config in whole for key in config)
    keys = list(own | dict.fromkeys(key for config in refused for key in config))
    agreed: dict[str, str] = {}
    for key in keys:
        values = {_text(config, key) for config in (whole if key in own else refused)}
        agreed[key] = values.pop() if len(values) == 1 else ABSENT
    return [
        {key: _text(config, key) if key in (config if run.overrides else own) else agreed[key] for key in keys}
        for run, config in zip(runs, found, strict=True)
    ]


def _counted(run: Run) -> dict[str, object]:
    return identity.flat(identity.without(run.config, identity.NOT_IN_REPORTS))


def _text(config: Mapping[str, object], key: str) -> str:
    return shown(config[key]) if key in config else ABSENT


def _axes(differing: Sequence[str], texts: Sequence[Mapping[str, str]]) -> tuple[Axis, ...]:
    """Merge keys that group the runs in the same way into one axis."""
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
    """Return a sort key with numbers by size, before words."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def names(axes: Sequence[Axis]) -> list[str]:
    """Return the last parts of swept keys, or a whole key where its last part is not unique."""
    shorts = [axis.short for axis in axes]
    return [short if shorts.count(short) == 1 else axis.key for axis, short in zip(axes, shorts, strict=True)]


def _configuration(axes: Sequence[Axis], values: tuple[str, ...], runs: Sequence[Run]) -> Configuration:
    label = ", ".join(f"{name}={value}" for name, value in zip(names(axes), values, strict=True))
    chosen: dict[object, Run] = {}
    repeats = []
    # Of several runs with one seed the one with the most iterations counts.
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
