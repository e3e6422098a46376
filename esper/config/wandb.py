"""Mirroring runs to Weights & Biases: whether, where to, and what goes along."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from esper.config.checks import distinct, positive


class WandbMode(StrEnum):
    """Whether W&B sees a run: not at all, later (``wandb sync``), or while it goes on."""

    disabled = "disabled"
    offline = "offline"
    online = "online"


@dataclass(kw_only=True, slots=True)
class WandbConfig:
    """The mirror of a run in W&B; the run folder stays the truth."""

    mode: WandbMode = WandbMode.disabled
    """disabled = W&B is not even imported; offline = files in the run folder, for ``wandb sync``; online = sent at
    once."""
    project: str = "esper"
    """Project that the run goes to."""
    entity: str | None = None
    """User or team that the project belongs to; null = W&B's own default."""
    group: str | None = None
    """Runs that belong together: by default the sweep, or else the preset."""
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
    """The mirror of a run of training, which has a checkpoint."""

    checkpoint: bool = False
    """Send the last checkpoint along as an artifact, once the run has finished."""
