"""Choice of a run's mapping: by name, or the fastest in a short benchmark, cached per device and host."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import esper
from esper.blueprints import blueprint_ids, build_blueprint
from esper.blueprints.contract import users_blueprints
from esper.hosts import CustomHost, Place
from esper.population.autotune import Timings, time_mappings
from esper.population.layout import ParameterLayout
from esper.population.mapping import COMPILED_MAPPINGS, MAPPINGS
from esper.population.trial import why_not
from esper.population.workload import Workload
from esper.runtime.cache import cache_dir
from esper.runtime.files import write_atomic

CACHE_FILE = "calibration.json"
CACHE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A chosen mapping and the reason.

    Attributes:
        mapping: name of the mapping.
        seconds: measured seconds per host and training step, by mapping; empty without a benchmark.
        refused: reasons why other mappings were excluded.
        cached: true if it was read from the cache, false if it was measured now.
        notes: problems with the cache, one line each.
    """

    mapping: str
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    cached: bool = False
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return messages for the user; none for a mapping given by name."""
        if not self.seconds:
            return list(self.notes)
        others = [f"{name} {_milliseconds(time)}" for name, time in _by_time(self.seconds) if name != self.mapping]
        measured = "; ".join(
            [
                f"{_milliseconds(self.seconds[self.mapping])} ms per host and step",
                *([", ".join(others)] if others else []),
            ]
        )
        line = f"mapping auto: {self.mapping} ({measured}), {'cached' if self.cached else 'measured now'}"
        return [*self.notes, line, *(f"mapping {name} cannot be used: {why}" for name, why in self.refused.items())]


_chosen: dict[str, Choice] = {}
"""Choices of this process: environments, twins and evaluation must agree even if the cache cannot be written."""


_able: set[str] = set()
"""Mappings and workloads that this process has tried with success, for Esper's own networks only."""


def choose_mapping(workload: Workload, measure: Callable[[Workload], Timings] = time_mappings) -> Choice:
    """Return the fastest mapping for a workload, from this process, the user's cache, or a benchmark.

    Args:
        workload: hosts, data and device.
        measure: times the mappings.

    Raises:
        ValueError: no mapping can run this host and its blueprints; gives the reason for each.
    """
    conditions = describe(workload)
    key = _key(conditions)
    if key not in _chosen:
        known, trouble = _read(key)
        if known is not None and why_not(workload, known.mapping) is not None:
            known = None  # a user's code may have changed since the mappings were timed
        _chosen[key] = known or _timed(workload, measure, key, conditions, trouble)
        return _chosen[key]
    return replace(_chosen[key], cached=True, notes=())


def require_mapping(workload: Workload, name: str) -> Choice:
    """Return the mapping with a given name, after a trial on the workload.

    Raises:
        ValueError: it cannot run this host or one of its blueprints; gives the reason and the mappings that can.
    """
    tried = f"{name} {_key(describe(workload))}"
    if tried in _able:
        return Choice(mapping=name)
    why = why_not(workload, name)
    if why is None:
        if _is_ours(workload):
            _able.add(tried)
        return Choice(mapping=name)
    others = {other: why_not(workload, other) for other in MAPPINGS if other != name}
    able = [other for other, refused in others.items() if refused is None]
    way_out = f"choose {' or '.join(able)}, or auto" if able else f"neither can {', '.join(others)}"
    raise ValueError(f"env.mapping={name} cannot run this host and its blueprints: {why}; {way_out}")


def _is_ours(workload: Workload) -> bool:
    """Return whether host and blueprints are Esper's own: users' code may change under the same description."""
    own = all(not users_blueprints(place.family).keys() & set(names) for place, names in _offered(workload))
    return own and workload.host.family != CustomHost.family


def _key(conditions: dict[str, object]) -> str:
    return hashlib.blake2b(json.dumps(conditions, sort_keys=True).encode(), digest_size=16).hexdigest()


def _timed(
    workload: Workload,
    measure: Callable[[Workload], Timings],
    key: str,
    conditions: dict[str, object],
    trouble: str | None,
) -> Choice:
    timings = measure(workload)
    if not timings.seconds:
        reasons = "; ".join(f"{name}: {why}" for name, why in timings.refused.items())
        raise ValueError(f"no mapping can run this host and its blueprints: {reasons}")
    choice = Choice(
        mapping=_by_time(timings.seconds)[0][0],
        seconds=timings.seconds,
        refused=timings.refused,
        notes=() if trouble is None else (f"{trouble}: mappings are timed again",),
    )
    unwritten = _write(key, choice, conditions)
    return choice if unwritten is None else replace(choice, notes=(*choice.notes, unwritten))


def _milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with two digits that count, and never with an exponent."""
    rounded = float(f"{1e3 * seconds:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _by_time(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: item[1])


def describe(workload: Workload) -> dict[str, object]:
    """Return everything that the fastest mapping depends on, as plain values."""
    device = workload.device
    layout = ParameterLayout.of(workload.host)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "esper": esper.__version__,
        "code": _code_digest(),
        "mappings": [*MAPPINGS, *COMPILED_MAPPINGS],
        "host": repr(workload.host),
        "parameters": [list(shape) for shape in layout.shapes],
        "slots": list(workload.slot_ids),
        "blueprints": [
            [_structure(build_blueprint(place.family, name, place.channels)) for name in names]
            for place, names in _offered(workload)
        ],
        "input": list(workload.inputs.shape[1:]),
        "batch_size": workload.batch_size,
        "num_envs": workload.num_envs,
        "steps_per_epoch": workload.steps_per_epoch,
        "num_val": len(workload.val_targets),
        "incubation": workload.incubation,
        "autocast": str(workload.autocast_dtype),
    }


def _offered(workload: Workload) -> Iterator[tuple[Place, list[str]]]:
    """Iterate over the place of each slot and the blueprints that may germinate there."""
    for slot_id, fits in zip(workload.slot_ids, workload.compatible.tolist(), strict=True):
        offered = [name for name, fit in zip(blueprint_ids(), fits, strict=True) if fit]
        yield workload.host.place(slot_id), offered


def _structure(module: nn.Module) -> list[object]:
    """Describe the layers of a module, because a user's blueprint may change under its name."""
    return [repr(module), [list(parameter.shape) for parameter in module.parameters()]]


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} {platform.machine()}"


def _code_digest() -> str:
    """Hash the benchmarked code, so that an edited mapping or layer is measured again."""
    digest, package = hashlib.blake2b(digest_size=8), Path(esper.__file__).parent
    for part in ("population", "blueprints", "hosts"):
        for path in sorted((package / part).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update((package / "growth" / "blending.py").read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------------ the cache


def cache_file() -> Path:
    """Return the path of the file in the user's cache that stores the fastest mapping of each workload."""
    return cache_dir() / CACHE_FILE


def _load() -> dict[str, Any]:
    """Load the stored mapping choices by key of the workload; an empty dictionary if there is no file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has another format, or is damaged.
    """
    path = cache_file()
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("choices"), dict):
        raise ValueError("not a calibration file")
    return content["choices"] if content.get("version") == CACHE_VERSION else {}


def _read(key: str) -> tuple[Choice | None, str | None]:
    """Return the stored choice of a key, if any, and a description of a fault in the cache, if any."""
    try:
        entry = _load().get(key)
        return None if entry is None else _parse(entry), None
    except (OSError, ValueError) as error:
        return None, f"cannot use {cache_file()} ({error})"


def _parse(entry: Any) -> Choice:
    """Parse a stored choice; raise ``ValueError`` for an unusable one."""
    try:
        seconds = {str(name): float(time) for name, time in entry["seconds"].items()}
        refused = {str(name): str(why) for name, why in entry["refused"].items()}
        mapping = str(entry["mapping"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("damaged entry") from error
    if (
        mapping not in MAPPINGS | COMPILED_MAPPINGS
        or mapping not in seconds
        or not all(map(math.isfinite, seconds.values()))
    ):
        raise ValueError("damaged entry")
    return Choice(mapping=mapping, seconds=seconds, refused=refused, cached=True)


def _write(key: str, choice: Choice, conditions: dict[str, object]) -> str | None:
    """Store a choice; return a description of the error if that fails.

    If two processes write at once, one of them may lose its choice, which costs it another benchmark.
    """
    path = cache_file()
    try:
        entries = _load()
    except (OSError, ValueError):
        entries = {}  # already reported on reading; the new file is valid
    entry = {"mapping": choice.mapping, "seconds": choice.seconds, "refused": choice.refused, "for": conditions}
    content = {"version": CACHE_VERSION, "choices": {**entries, key: entry}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        return f"cannot write {path} ({error.strerror or error}): the next run times the mappings again"
    return None
