"""What may be said about a task besides its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task's data is found and cut; ``None`` is always the task's own choice.

    Attributes:
        root: folder with data sets, looked into first and downloaded to.
        url: address of a folder with the files to download, in place of where they were published.
        verify: refuse files that do not hold what was published.
        num_val: samples that validate, in text as many windows of bytes. Where val is cut off train, the others train.
        max_samples: at most so many samples in each split, for a quick look.
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
