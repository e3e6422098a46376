"""The whole configuration, with evaluation and telemetry, and the checks that span sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from esper.config.checks import MAX_SEED, MAX_THREADS, at_least, at_most, distinct, sensible
from esper.config.growth import (
    CounterfactualConfig,
    EnvConfig,
    InstancesConfig,
    ObservationConfig,
    SlotsConfig,
    TaskConfig,
)
from esper.config.hosts import CNNConfig, HostConfig
from esper.config.learning import PolicyConfig, PPOConfig, RewardConfig, TrainerConfig
from esper.config.paths import expanded
from esper.config.wandb import TrainWandbConfig
from esper.hosts import check_fault, parse_faults
from esper.runtime.devices import parse_devices, shown


class Level(StrEnum):
    """How much telemetry is kept."""

    off = "off"
    normal = "normal"
    debug = "debug"


class Console(StrEnum):
    """What a run shows in the terminal; auto = live in a terminal, plain otherwise."""

    auto = "auto"
    live = "live"
    plain = "plain"
    off = "off"


class Amp(StrEnum):
    """Automatic mixed precision: what products and convolutions of hosts and policy compute in."""

    off = "off"
    bf16 = "bf16"
    fp16 = "fp16"


@dataclass(kw_only=True, slots=True)
class ScheduleStep:
    """One step of the ``schedule`` controller."""

    epoch: int = 0
    """Host epoch at which it germinates."""
    slot: int = 0
    """Which slot, as its number in canonical order."""
    blueprint: str | None = None
    """Which blueprint; null = the first that fits the slot."""


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """The closing table: every controller on the same held-out hosts."""

    controllers: list[str] = field(default_factory=lambda: ["learned", "heuristic", "random", "never"])
    """Rows of the table, from the controller registry."""
    num_hosts: int = 32
    """Held-out instances that each controller grows."""
    deterministic: bool = True
    """Let the learned controller take its most probable action instead of sampling."""
    schedule: dict[str, ScheduleStep] = field(default_factory=lambda: {"first": ScheduleStep()})
    """Steps of the ``schedule`` controller, by any name."""

    def __post_init__(self) -> None:
        distinct("evaluation.controllers", self.controllers)
        at_least("evaluation.num_hosts", self.num_hosts, 1)
        for name, step in self.schedule.items():
            at_least(f"evaluation.schedule.{name}.epoch", step.epoch, 0)
            at_least(f"evaluation.schedule.{name}.slot", step.slot, 0)


@dataclass(kw_only=True, slots=True)
class TelemetryConfig:
    """What a run records and shows."""

    level: Level = Level.normal
    """Events kept: none, those of the lifecycle, or one per action as well."""
    escalation_iterations: int = 3
    """Iterations after an anomaly in which a ``normal`` run is kept at ``debug``; 0 = none."""
    console: Console = Console.auto
    """Progress in the terminal."""
    plots: bool = True
    """Draw PNGs at the end of a run."""

    def __post_init__(self) -> None:
        at_least("telemetry.escalation_iterations", self.escalation_iterations, 0)


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """What the policy of a new run starts from."""

    path: str | None = None
    """A checkpoint or run folder whose policy and normaliser to start from; null = initialised from the seed."""
    partial: bool = False
    """Take over all but slot head and input layer, which stay as initialised: for another slot count or task."""

    def __post_init__(self) -> None:
        if self.partial and self.path is None:
            raise ValueError("checkpoint.partial=true has no checkpoint to load: say checkpoint.path=<file or folder>")
        if self.path is not None:
            self.path = expanded(self.path)


@dataclass(kw_only=True, slots=True)
class Config:
    """Everything that a run depends on."""

    seed: int = 0
    """RNG seed of the whole run."""
    devices: Any = "cpu"
    """Where hosts and policy live, one rank per device: cpu, a CUDA index, a list ([0,1], [cpu,cpu]), or auto."""
    amp: Amp = Amp.off
    """Mixed precision of hosts and policy; off = fp32 throughout. fp16 scales losses, each host's by itself."""
    num_threads: int = 1
    """CPU threads of tensor operations in each rank; 0 = all cores. Hosts on tiny maps are fastest on one."""
    name: str = "run"
    """Name of the run and of its folder."""
    resume: str | None = None
    """Go on with a run: its folder, or auto = the newest interrupted run of this configuration, if there is one."""
    plugins: list[str] = field(default_factory=list)
    """Python modules to import first, so that the blueprints that they register can be named."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """The data that hosts train on."""
    host: HostConfig = field(default_factory=CNNConfig)
    """The network that grows."""
    instances: InstancesConfig = field(default_factory=InstancesConfig)
    """Which hosts environments draw."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The growth environment."""
    slots: SlotsConfig = field(default_factory=SlotsConfig)
    """Where and how modules may grow."""
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    """What a controller sees."""
    counterfactual: CounterfactualConfig = field(default_factory=CounterfactualConfig)
    """Validation passes with modules switched off."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The learned controller's network."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How the learned controller learns."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What a controller is paid for."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """The training loop."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What the policy starts from."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The closing table."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """What is recorded and shown."""
    wandb: TrainWandbConfig = field(default_factory=TrainWandbConfig)
    """The mirror in Weights & Biases."""

    def __post_init__(self) -> None:
        sensible("seed", self.seed, 0, MAX_SEED)
        sensible("num_threads", self.num_threads, 0, MAX_THREADS)
        devices = parse_devices(self.devices)
        if not self.name or self.name in (".", "..") or "/" in self.name:
            raise ValueError(f"name must be a folder name without '/', got {self.name!r}")
        if self.resume is not None:
            self.resume = expanded(self.resume)
        self._resolve_nulls()
        self._check_learning()
        self.check_shares(len(devices))
        self._check_instances()
        if self.counterfactual.shapley_permutations:
            at_most(
                "slots.num_slots",
                self.slots.num_slots,
                "counterfactual.max_configurations, of which one permutation needs one per slot",
                self.counterfactual.max_configurations,
            )
        for name, step in self.evaluation.schedule.items():
            at_most(f"evaluation.schedule.{name}.epoch", step.epoch, "env.num_epochs - 1", self.env.num_epochs - 1)
            at_most(f"evaluation.schedule.{name}.slot", step.slot, "slots.num_slots - 1", self.slots.num_slots - 1)

    def check_shares(self, num_ranks: int) -> None:
        """Refuse more ranks than there is work for.

        Raises:
            ValueError: a rank would have no environment, no held-out host, or fewer environments than minibatches.
        """
        if num_ranks == 1:
            return
        given = f"devices={shown(self.devices)} gives {num_ranks} ranks"
        smallest = self.trainer.num_envs // num_ranks
        for key, count in (
            ("trainer.num_envs", self.trainer.num_envs),
            ("evaluation.num_hosts", self.evaluation.num_hosts),
        ):
            if count < num_ranks:
                raise ValueError(f"{given} but {key} is {count}: each needs at least one; name fewer devices")
        if self.ppo.num_minibatches > smallest:
            raise ValueError(
                f"{given}, the smallest with {smallest} of {self.trainer.num_envs} environments, but "
                f"ppo.num_minibatches is {self.ppo.num_minibatches}: set it to at most {smallest}"
            )

    def _resolve_nulls(self) -> None:
        """Make the configuration that is shown and saved say the numbers that a run uses.

        Here and not in the sections: Hydra builds the default sections before it knows any other value.
        """
        if self.slots.max_developing is None:
            self.slots.max_developing = self.slots.num_slots
        if self.slots.max_seeds is None:
            self.slots.max_seeds = self.slots.num_slots
        if not self.instances.families:
            self.instances.families = self.host.families()
        if self.trainer.num_steps is None:
            self.trainer.num_steps = self.env.num_epochs
        self._derive_dimensions()

    def _derive_dimensions(self) -> None:
        """Make the configuration say how wide observations are, and refuse one that says otherwise."""
        # Imported here: it builds on much that help and most errors of use must not wait for.
        from esper.blueprints import blueprint_ids
        from esper.envs.features import NUM_BASE_FEATURES, NUM_SLOT_FEATURES, num_features

        seen, num_slots, num_probes = self.observation, self.slots.num_slots, len(self.observation.slot_probes)
        width = num_features(num_slots, num_probes)
        if seen.num_features not in (None, width):
            raise ValueError(
                f"observation.num_features must be {width}, which is {NUM_BASE_FEATURES} and "
                f"{NUM_SLOT_FEATURES + num_probes} for each of slots.num_slots={num_slots}, got {seen.num_features}: "
                "leave it out"
            )
        seen.num_features = width
        if seen.num_blueprints is None:  # otherwise preflight compares, once everything is registered
            seen.num_blueprints = len(blueprint_ids())

    def _check_learning(self) -> None:
        at_most("ppo.num_minibatches", self.ppo.num_minibatches, "trainer.num_envs", self.trainer.num_envs)
        if self.ppo.anneal_lr:
            # Beyond the end of the annealing the learning rate is 0 and a run would only burn time.
            at_most(
                "trainer.num_iterations",
                self.trainer.num_iterations,
                "ppo.anneal_iterations (with ppo.anneal_lr=true)",
                self.ppo.anneal_iterations,
            )

    def _check_instances(self) -> None:
        at_most(
            "evaluation.num_hosts", self.evaluation.num_hosts, "instances.num_held_out", self.instances.num_held_out
        )
        what, narrowest = self.host.narrowest
        for key, families in self.instances.mixes().items():
            for family in (family for family, weight in families.items() if weight):
                try:
                    check_fault(family, self.host.name, self.host.num_blocks)
                except ValueError as error:
                    raise ValueError(f"{key}.{family}: {error} (weight 0 leaves a family out)") from None
                faults = parse_faults(family)
                if faults.starved:
                    at_most("instances.alive_channels", self.instances.alive_channels, what, narrowest)
                if faults.width is not None:
                    at_most(f"channels of {key}.{family}", faults.width, what, narrowest)
