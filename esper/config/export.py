"""Configuration of an export: a network that a run has grown, and the forms to write it in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from esper.config.paths import expanded

BEST = "best"


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """Configuration of an export: run, host, forms, and folder."""

    run: str = "???"
    """Folder of a finished training run."""
    host: Any = BEST
    """Number of a held-out host, or best = that of highest validation accuracy among those that kept a module."""
    format: Any = "torch_export"
    """torch_export, onnx, source, or a list of them."""
    out: str = "???"
    """Folder to write, new or empty."""

    def __post_init__(self) -> None:
        self.run, self.out = expanded(self.run), expanded(self.out)
        whole = isinstance(self.host, int) and not isinstance(self.host, bool) and self.host >= 0
        if not whole and self.host != BEST:
            raise ValueError(f"host must be best or a whole number from 0 on, got {self.host!r}")
        if not self.formats or not all(isinstance(name, str) for name in self.formats):
            raise ValueError(f"format must be a form or a list of forms, got {self.format!r}")

    @property
    def formats(self) -> list[Any]:
        """Value of ``format`` as a list."""
        return list(self.format) if isinstance(self.format, list | tuple) else [self.format]
