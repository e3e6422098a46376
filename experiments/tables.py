"""Formatting of numbers in the studies' READMEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from esper.runtime.files import write_csv


def interval(value: Mapping[str, float] | None, spec: str, scale: float = 1.0) -> str:
    """Format an interval of ``result.json`` as ``estimate [low, high]``; ``None`` gives an empty string."""
    if value is None:
        return ""
    estimate, low, high = (f"{scale * value[name]:{spec}}" for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def between_markers(text: str, name: str, content: str) -> str:
    """Replace the content between ``<!-- name: begin -->`` and ``<!-- name: end -->`` in a text.

    Raises:
        ValueError: the markers are missing.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"no markers for {name!r}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows that have the same keys, as CSV."""
    write_csv(path, rows[0], (row.values() for row in rows), end="\n")
