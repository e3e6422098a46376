"""Options of a task besides its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options for finding and dividing a task's data; ``None`` is always the task's own choice.

    Attributes:
        root: folder with data sets, searched first and used for downloads.
        url: address of a folder with the files to download, instead of the original server.
        verify: refuse files that differ from the published ones.
        num_val: number of validation samples; for text, of windows of bytes. Where val is taken from train, the rest
            trains.
        max_samples: largest number of samples in each split, for a quick trial.
        context_length: tokens in a window, for text.
        vocab_size: tokens of a byte-pair encoding trained on the text; bytes when ``None``.
    """

    root: Path | None = None
    url: str | None = None
    verify: bool = True
    num_val: int | None = None
    max_samples: int | None = None
    context_length: int | None = None
    vocab_size: int | None = None
