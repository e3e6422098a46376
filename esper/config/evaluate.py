"""Configuration of an evaluation of trained controllers and their controls on held-out hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from esper.config.paths import expanded
from esper.config.root import EvaluationSplit
from esper.config.wandb import WandbConfig
from esper.runtime.checks import MAX_HOSTS, MAX_SEED, MAX_THREADS, at_least, distinct, sensible
from esper.runtime.options import Greedy
from esper.runtime.placement import parse_devices
from esper.runtime.terminal import ConsoleMode
from esper.telemetry.confidence import LEVEL, least_draws

MAX_DRAWS = 10_000_000
MAX_EPOCHS = 10**9
"""Limits beyond which an evaluation would not end, or not fit into memory."""

DEFAULT_CONTROLLERS = (
    "learned",
    "heuristic",
    "probe_rule",
    "probe_and_keep",
    "schedule_best",
    "schedule_per_family",
    "random",
    "never",
    "static_final",
    "static_full",
    "static_best",
)


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Configuration of an evaluation: checkpoints, controllers, and hosts."""

    checkpoint: Any = "???"
    """A checkpoint, a run folder (its last checkpoint), the name of a shipped controller (digits_pays), or a list of
    them: one per run seed of one configuration.
    """
    plugins: list[str] = field(default_factory=list)
    """Python modules to import besides those of the run, so that the controllers that they register can be named."""
    controllers: list[str] = field(default_factory=lambda: list(DEFAULT_CONTROLLERS))
    """Rows of the table, from the controller registry."""
    num_hosts: int = 64
    """Held-out instances that each controller grows, the same for all."""
    split: EvaluationSplit = EvaluationSplit.held_out
    """Hosts to play: held_out; validation, for the choice of a recipe; or train, those of training."""
    families: dict[str, float] = field(default_factory=dict)
    """Weights of the host families to draw held-out instances from; {} = those that the run held out."""
    sampled: bool = True
    """Add a second row for the learned controller, with sampled actions."""
    greedy: Greedy | None = None
    """Op of the learned controller's own row; null = ``evaluation.greedy`` of the run."""
    tuning: Any = None
    """``tuning.json`` of one or several earlier evaluations of the same configuration; controls missing there are tuned
    now.
    """
    tuning_epochs: int | None = None
    """Environment epochs that each tuned control may spend on training instances; null = as many as training spent."""
    draws: int = 10_000
    """Bootstrap draws for each interval, at least 40."""
    seed: int = 0
    """RNG seed of tuning, of controls that draw, and of the bootstrap."""
    devices: Any = "cpu"
    """Devices for hosts and policy, one rank per device: cpu, a CUDA index, a list ([0,1], [cpu,cpu]), or auto."""
    num_threads: int = 1
    """CPU threads of tensor operations in each rank; 0 = all cores."""
    name: str = "run"
    """Name of the evaluation and of its folder; on the command line made of seed and start time if it is not given."""
    console: ConsoleMode = ConsoleMode.auto
    """Progress in the terminal."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Mirroring to Weights & Biases."""

    def __post_init__(self) -> None:
        checkpoints = self.checkpoints
        if not all(isinstance(path, str) and path for path in checkpoints):
            raise ValueError(f"checkpoint must be a path or a list of paths, got {self.checkpoint!r}")
        distinct("checkpoint", checkpoints)
        if not all(isinstance(path, str) and path for path in self.tunings):
            raise ValueError(f"tuning must be a path or a list of paths, got {self.tuning!r}")
        if self.tunings:
            distinct("tuning", self.tunings)
        distinct("controllers", self.controllers)
        sensible("num_hosts", self.num_hosts, 2, MAX_HOSTS)  # a single host has no variation
        sensible("draws", self.draws, least_draws(LEVEL), MAX_DRAWS)
        if self.families and self.split is not EvaluationSplit.held_out:
            raise ValueError(f"families={self.families} are of held-out hosts: leave them out with split={self.split}")
        for family, weight in self.families.items():
            at_least(f"families.{family}", weight, 0)
        if self.families and not any(self.families.values()):
            raise ValueError(f"families must give a weight above 0 to at least one of {list(self.families)}")
        if self.tuning_epochs is not None:
            sensible("tuning_epochs", self.tuning_epochs, 1, MAX_EPOCHS)
        sensible("seed", self.seed, 0, MAX_SEED)
        sensible("num_threads", self.num_threads, 0, MAX_THREADS)
        parse_devices(self.devices)
        if not self.name or self.name in (".", "..") or "/" in self.name:
            raise ValueError(f"name must be a folder name without '/', got {self.name!r}")

    @property
    def checkpoints(self) -> list[Any]:
        """Value of ``checkpoint`` as a list."""
        return _paths(self.checkpoint)

    @property
    def tunings(self) -> list[Any]:
        """Value of ``tuning`` as a list, empty for null."""
        return [] if self.tuning is None else _paths(self.tuning)


def _paths(value: Any) -> list[Any]:
    paths = value if isinstance(value, list | tuple) else [value]
    return [expanded(path) if isinstance(path, str) else path for path in paths]
