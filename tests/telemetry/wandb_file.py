"""Reading what W&B wrote: its offline file is a log of protobuf records in 32 KiB blocks, after a header of 7 bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32 * 1024
FILE_HEADER, PART_HEADER = 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """All records of a ``run-<id>.wandb`` that are wholly written, in order; W&B's process may be at the next one."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = FILE_HEADER, b""
    while position + PART_HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < PART_HEADER:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if kind == 0 or position + PART_HEADER + length > len(data):
            break
        parts += data[position + PART_HEADER : position + PART_HEADER + length]
        position += PART_HEADER + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def offline_files(run_dir: Path) -> list[Path]:
    """One per segment of a run, in the order of writing."""
    return sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"))


def is_whole(path: Path) -> bool:
    """Return whether the run in a file has been finished and completely written."""
    return any(record.HasField("exit") for record in records(path))


def values(items: Any) -> dict[str, Any]:
    """Items of a history row, a summary or a configuration as one dict."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


class OfflineRun:
    """One segment: what W&B would be sent."""

    def __init__(self, path: Path) -> None:
        found = list(records(path))
        [self.run] = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
        self.config = values(self.run.config.update)
        self.history = [values(record.history.item) for record in found if record.HasField("history")]
        self.summary: dict[str, Any] = {}
        for record in found:
            if record.HasField("summary"):
                self.summary |= values(record.summary.update)
        self.metrics = [record.metric for record in found if record.HasField("metric")]
        self.artifacts = [record.artifact for record in found if record.HasField("artifact")]
        self.artifacts += [record.request.log_artifact.artifact for record in found if record.HasField("request")]
        self.exit_codes = [record.exit.exit_code for record in found if record.HasField("exit")]
        self.alerts = [record.alert for record in found if record.HasField("alert")]
        self.printed = "".join(record.output_raw.line for record in found if record.HasField("output_raw"))
        self.preempting = any(record.HasField("preempting") for record in found)
