"""JSON-safe records, the form in which events, metrics and results are written to files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

Metrics: TypeAlias = Mapping[str, float | None]
"""Number by metric name. ``None`` means "not measured", which is not zero."""

TIME_PREFIX = "time/"
TIME_KEYS: frozenset[str] = frozenset({"charts/SPS"})


def json_safe(value: object) -> Any:
    """Convert a value to plain JSON types: NaN and infinities become ``None``, enums their name, dataclasses dicts.

    Raises:
        TypeError: a type without an obvious record, such as a tensor.
    """
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_safe(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"no JSON record of a {type(value).__name__}: {value!r}")


def without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the values that depend on the clock from a metrics record: ``time/...`` and ``charts/SPS``.

    Two runs of one configuration and seed have equal ``metrics.jsonl`` after this.
    """
    return {key: value for key, value in record.items() if not key.startswith(TIME_PREFIX) and key not in TIME_KEYS}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the records of a JSONL file.

    A last line without a newline, which a killed process leaves behind, is skipped.

    Raises:
        ValueError: a complete line is not a JSON object; names the file and the line.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object")
        records.append(record)
    return records
