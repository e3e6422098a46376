"""Numbers of studies in their READMEs."""

from __future__ import annotations

from collections.abc import Mapping


def interval(value: Mapping[str, float] | None, spec: str, scale: float = 1.0) -> str:
    """``estimate [low, high]`` of an interval in ``result.json``; nothing for ``None``."""
    if value is None:
        return ""
    estimate, low, high = (f"{scale * value[name]:{spec}}" for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def between_markers(text: str, name: str, content: str) -> str:
    """The text with new content between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    Raises:
        ValueError: the markers are not there.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"no markers for {name!r}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"
