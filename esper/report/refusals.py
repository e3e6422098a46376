"""Values of jobs that were refused: such a job has no configuration, but the arguments of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from esper.config import identity
from esper.report.folders import Run


def stated(words: Sequence[str]) -> dict[str, object]:
    """Return the values that arguments set, by dotted key, without those that reports ignore."""
    values: dict[str, object] = {}
    for word in words:
        try:
            [parsed] = OverridesParser.create().parse_overrides([word])
        except HydraException:
            continue  # that may be the reason of the refusal
        if not parsed.is_delete():
            values |= identity.flat({parsed.key_or_group: parsed.value()})
    return {key: value for key, value in values.items() if not _is_ignored(key)}


def _is_ignored(key: str) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in (*identity.NOT_IN_REPORTS, "hydra"))


def by_reason(runs: Sequence[Run]) -> Mapping[str, list[str]]:
    """Group the names of refused runs by the reason of the refusal."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.overrides:
            found.setdefault(run.error or "no reason recorded", []).append(run.path.name)
    return found
