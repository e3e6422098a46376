"""Root of the configuration, with evaluation and telemetry, and the checks that span sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from esper.blueprints import blueprint_ids
from esper.config.growth import (
    CounterfactualConfig,
    EnvConfig,
    InstancesConfig,
    ObservationConfig,
    SlotsConfig,
    TaskConfig,
)
from esper.config.hosts import CNNConfig, HostConfig
from esper.config.learning import A2CConfig, ImitationConfig, PolicyConfig, PPOConfig, RewardConfig, TrainerConfig
from esper.config.paths import expanded, lasting
from esper.config.wandb import TrainWandbConfig
from esper.envs.features import MAX_PRICE, NUM_BASE_FEATURES, NUM_SLOT_FEATURES, num_features
from esper.hosts import check_fault, parse_faults
from esper.hosts.faults import BLOCK_FAULTS
from esper.runtime.checks import MAX_SEED, MAX_THREADS, at_least, at_most, distinct, sensible
from esper.runtime.controller_names import LEARNED
from esper.runtime.options import Amp, Greedy, WandbMode
from esper.runtime.placement import parse_devices, shown
from esper.runtime.terminal import ConsoleMode
from esper.telemetry.events import Level


@dataclass(kw_only=True, slots=True)
class ScheduleStep:
    """One step of the ``schedule`` controller."""

    epoch: int = 0
    """Host epoch at which to germinate."""
    slot: int = 0
    """Number of the slot in canonical order."""
    blueprint: str | None = None
    """Blueprint to germinate; null = the first that fits the slot."""


class EvaluationSplit(StrEnum):
    """Instances that an evaluation plays."""

    held_out = "held_out"
    validation = "validation"
    train = "train"

    @property
    def hosts(self) -> str:
        """Name of these hosts in tables."""
        return "training hosts" if self is EvaluationSplit.train else f"{self.replace('_', '-')} hosts"


class SaveGrown(StrEnum):
    """Networks that a run keeps of those that the learned controller has grown on held-out hosts."""

    none = "none"
    best = "best"
    all = "all"


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """Section ``evaluation``: the closing evaluation, which plays every controller on the same held-out hosts."""

    controllers: list[str] = field(default_factory=lambda: ["learned", "heuristic", "random", "never"])
    """Rows of the table, from the controller registry."""
    num_hosts: int = 32
    """Held-out instances that each controller grows."""
    split: EvaluationSplit = EvaluationSplit.held_out
    """Hosts to play: held_out; validation, for the choice of a recipe; or train, those of training."""
    deterministic: bool = True
    """Let the learned controller take its most probable action instead of sampling."""
    greedy: Greedy = Greedy.mode
    """With ``deterministic``, the op: the most probable of each step (mode), or that unless another is overdue, which
    half of the sampled episodes would have taken by then (hazard), so that nothing waits for ever.
    """
    schedule: dict[str, ScheduleStep] = field(default_factory=lambda: {"first": ScheduleStep()})
    """Steps of the ``schedule`` controller, by any name."""
    save_grown: SaveGrown = SaveGrown.none
    """Keep in the run folder what the learned controller grew: none, the best by validation, or all hosts."""

    def __post_init__(self) -> None:
        distinct("evaluation.controllers", self.controllers)
        at_least("evaluation.num_hosts", self.num_hosts, 1)
        if self.save_grown is not SaveGrown.none and LEARNED not in self.controllers:
            raise ValueError(
                f"evaluation.save_grown={self.save_grown} keeps what 'learned' grows, which evaluation.controllers="
                f"{self.controllers} does not name"
            )
        for name, step in self.schedule.items():
            at_least(f"evaluation.schedule.{name}.epoch", step.epoch, 0)
            at_least(f"evaluation.schedule.{name}.slot", step.slot, 0)


@dataclass(kw_only=True, slots=True)
class TelemetryConfig:
    """Section ``telemetry``: recorded and displayed output of a run."""

    level: Level = Level.normal
    """Events to record: none, those of the lifecycle, or one per action as well."""
    escalation_iterations: int = 3
    """Iterations after an anomaly in which a ``normal`` run records at ``debug``; 0 = none."""
    console: ConsoleMode = ConsoleMode.auto
    """Form of the progress display in the terminal."""
    plots: bool = True
    """Draw PNGs at the end of a run."""
    loggers: list[str] = field(default_factory=list)
    """Loggers besides the run's own record: csv (metrics.csv in the run folder), tensorboard (event files in its
    tensorboard/), wandb (as wandb.mode says, online by default), or those that plugins register.
    """

    def __post_init__(self) -> None:
        if self.loggers:
            distinct("telemetry.loggers", self.loggers)
        at_least("telemetry.escalation_iterations", self.escalation_iterations, 0)


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Section ``checkpoint``: initial policy of a new run."""

    path: str | None = None
    """A checkpoint or run folder whose policy and normaliser to start from; null = initialised from the seed."""
    partial: bool = False
    """Load all but slot head and input layer, which keep their initial values: for another slot count or task."""

    def __post_init__(self) -> None:
        if self.partial and self.path is None:
            raise ValueError("checkpoint.partial=true has no checkpoint to load: use checkpoint.path=<file or folder>")
        if self.path is not None:
            self.path = lasting(self.path)


@dataclass(kw_only=True, slots=True)
class Config:
    """The whole configuration of a training run."""

    seed: int = 0
    """RNG seed of the whole run."""
    devices: Any = "cpu"
    """Devices for hosts and policy, one rank per device: cpu, a CUDA index, a list ([0,1], [cpu,cpu]), or auto."""
    amp: Amp = Amp.off
    """Mixed precision of hosts and policy; off = fp32 throughout. fp16 scales losses, separately for each host."""
    num_threads: int = 1
    """CPU threads of tensor operations in each rank; 0 = all cores. Hosts on tiny maps are fastest on one."""
    name: str = "run"
    """Name of the run and of its folder; on the command line made of preset, seed and start time if it is not given."""
    resume: str | None = None
    """Resume a run: its folder, or auto = the newest interrupted run of this configuration, if there is one."""
    plugins: list[str] = field(default_factory=list)
    """Python modules to import first, so that other keys can name what they register."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """The data that hosts train on."""
    host: HostConfig = field(default_factory=CNNConfig)
    """The network that grows."""
    instances: InstancesConfig = field(default_factory=InstancesConfig)
    """Distribution of hosts over environments."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The growth environment."""
    slots: SlotsConfig = field(default_factory=SlotsConfig)
    """Slots and limits for growth."""
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    """Observations of a controller."""
    counterfactual: CounterfactualConfig = field(default_factory=CounterfactualConfig)
    """Validation passes with modules switched off."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The learned controller's network."""
    algorithm: str = "ppo"
    """Algorithm that trains the learned controller, from the algorithm registry: ppo, or a2c."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Numbers of PPO, and the discount of the environment's return."""
    a2c: A2CConfig = field(default_factory=A2CConfig)
    """Numbers of A2C."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """A start from another controller's behaviour."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Reward of a controller."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """The training loop."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Initial policy."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The closing evaluation."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Recorded and displayed output."""
    wandb: TrainWandbConfig = field(default_factory=TrainWandbConfig)
    """Mirroring to Weights & Biases."""

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
        every, steps = self.slots.incubate_every, self.env.steps_per_epoch
        at_most("slots.incubate_every", every, "env.steps_per_epoch, since every epoch begins with one", steps)
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
        for key, count in self._minibatches().items():
            if count > smallest:
                raise ValueError(
                    f"{given}, the smallest with {smallest} of {self.trainer.num_envs} environments, but "
                    f"{key} is {count}: set it to at most {smallest}"
                )

    def _resolve_nulls(self) -> None:
        """Replace nulls by the numbers that a run uses, so that the displayed and saved configuration shows them.

        This is not done in the sections, because Hydra builds the default sections before it knows any other value.
        """
        if self.slots.max_developing is None:
            self.slots.max_developing = self.slots.num_slots
        if self.slots.max_seeds is None:
            self.slots.max_seeds = self.slots.num_slots
        if self.instances.block_faults:
            self.instances.families = {}
        elif not self.instances.families:
            self.instances.families = self.host.families()
        if self.trainer.num_steps is None:
            self.trainer.num_steps = self.env.num_epochs
        self._resolve_mirror()
        self._derive_dimensions()

    def _resolve_mirror(self) -> None:
        named = "wandb" in self.telemetry.loggers
        if self.wandb.mode is None:
            self.wandb.mode = WandbMode.online if named else WandbMode.disabled
        elif named and self.wandb.mode is WandbMode.disabled:
            raise ValueError(
                f"telemetry.loggers={self.telemetry.loggers} names wandb, but wandb.mode is disabled: leave out one of "
                "the two, or choose wandb.mode=online or offline"
            )

    def _derive_dimensions(self) -> None:
        """Set the width of observations, and refuse a configured width that differs."""
        seen, num_slots, num_probes = self.observation, self.slots.num_slots, len(self.observation.slot_probes)
        width = num_features(num_slots, num_probes, seen.price)
        if seen.num_features not in (None, width):
            raise ValueError(
                f"observation.num_features must be {width}, which is {NUM_BASE_FEATURES} and "
                f"{NUM_SLOT_FEATURES + num_probes} for each of slots.num_slots={num_slots}"
                f"{' and 1 for the price' * seen.price}, got {seen.num_features}: leave it out"
            )
        seen.num_features = width
        highest = max(self.reward.rent_weights or [self.reward.rent_weight])
        if seen.price and highest > MAX_PRICE:
            raise ValueError(
                f"observation.price=true tells prices up to {MAX_PRICE:g} points from one another, and the rent is up "
                f"to {highest:g}: choose lower ones in reward.rent_weights or reward.rent_weight"
            )
        if seen.num_blueprints is None:  # otherwise preflight compares, once plugins are registered
            seen.num_blueprints = len(blueprint_ids())

    def _minibatches(self) -> dict[str, int]:
        """Return the numbers of minibatches that divide the environments of a rank, by key."""
        found = {"ppo.num_minibatches": self.ppo.num_minibatches} if self.algorithm == "ppo" else {}
        if self.imitation.controller is not None:
            found["imitation.num_minibatches"] = self.imitation.num_minibatches
        return found

    def _check_learning(self) -> None:
        for key, count in self._minibatches().items():
            at_most(key, count, "trainer.num_envs", self.trainer.num_envs)
        if self.imitation.controller is not None:
            iterations = self.trainer.num_iterations
            at_most("imitation.iterations", self.imitation.iterations, "trainer.num_iterations", iterations)
        if self.algorithm == "ppo" and self.ppo.anneal_lr:
            # After the end of the annealing the learning rate is 0 and further iterations would be wasted.
            at_most(
                "trainer.num_iterations",
                self.trainer.num_iterations,
                "ppo.anneal_iterations (with ppo.anneal_lr=true)",
                self.ppo.anneal_iterations,
            )

    def _check_instances(self) -> None:
        size = f"num_{self.evaluation.split}"
        at_most("evaluation.num_hosts", self.evaluation.num_hosts, f"instances.{size}", getattr(self.instances, size))
        what, narrowest = self.host.narrowest
        for fault in self.instances.block_faults:
            possible = BLOCK_FAULTS.get(self.host.name, ())
            if fault not in possible:
                raise ValueError(
                    f"instances.block_faults.{fault}: blocks of {self.host.name} hosts can have "
                    f"{', '.join(possible) or 'no faults'}"
                )
            if fault == "starved":
                at_most("instances.alive_channels", self.instances.alive_channels, what, narrowest)
        impossible: list[tuple[str, ValueError]] = []
        for key, families in self.instances.mixes().items():
            for family in (family for family, weight in families.items() if weight):
                try:
                    check_fault(family, self.host.name, self.host.num_blocks)
                except ValueError as error:
                    impossible.append((f"{key}.{family}", error))
                    continue
                faults = parse_faults(family)
                if key == "instances.host_faults" and (faults.starved or faults.local or faults.all_local):
                    raise ValueError(f"{key}.{family} is a fault of blocks, which instances.block_faults draws")
                if faults.starved:
                    at_most("instances.alive_channels", self.instances.alive_channels, what, narrowest)
                if faults.width is not None:
                    at_most(f"channels of {key}.{family}", faults.width, what, narrowest)
        if impossible:
            (first, reason), *others = impossible
            also = f"; nor can it have {', '.join(other for other, _ in others)}" if others else ""
            raise ValueError(f"{first}: {reason}{also} (weight 0 leaves a family out)")
