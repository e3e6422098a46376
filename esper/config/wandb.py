"""Configuration of mirroring to Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper.runtime.checks import distinct, positive
from esper.runtime.options import WandbMode


@dataclass(kw_only=True, slots=True)
class WandbConfig:
    """Section ``wandb``: mirroring of a run to W&B; the run folder remains the primary record."""

    mode: WandbMode | None = None
    """disabled = W&B is not even imported; offline = files in the run folder, for ``wandb sync``; online = sent
    immediately; null = disabled, but online in a training run whose ``telemetry.loggers`` names wandb.
    """
    project: str = "esper"
    """W&B project of the run."""
    entity: str | None = None
    """User or team that the project belongs to; null = W&B's own default."""
    group: str | None = None
    """W&B group of related runs: by default the sweep, otherwise the preset."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run."""
    timeout: float = 60.0
    """Seconds to wait for an unreachable server, at the start and at the end of a run."""

    def __post_init__(self) -> None:
        for key in ("project", "entity", "group"):
            value = getattr(self, key)
            if value == "" or (value is not None and key != "group" and "/" in value):
                raise ValueError(f"wandb.{key} must be a name, not empty and without '/', got {value!r}")
        if self.tags:
            distinct("wandb.tags", self.tags)
        positive("wandb.timeout", self.timeout)


@dataclass(kw_only=True, slots=True)
class TrainWandbConfig(WandbConfig):
    """Section ``wandb`` of a training run, which has a checkpoint to send."""

    checkpoint: bool = False
    """Send the last checkpoint as an artifact when the run has finished."""
