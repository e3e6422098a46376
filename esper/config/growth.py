"""Configuration of growth and its data: task, instances, environment, slots, observation, counterfactuals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from esper.config.paths import lasting
from esper.growth.stages import Incubation
from esper.runtime.checks import MAX_BATCH, MAX_HOSTS, MAX_SEED, at_least, at_most, distinct, positive, sensible, within
from esper.runtime.options import MappingName


class IsolateUntil(StrEnum):
    """Stage from which gradients flow through host and seed module jointly."""

    blending = "blending"
    fossilized = "fossilized"


@dataclass(kw_only=True, slots=True)
class TaskConfig:
    """Section ``task`` of the configuration: the data that hosts train on."""

    name: str = "digits"
    """Name of the task, from the task registry."""
    batch_size: int = 64
    """Samples in each host's own minibatch."""
    root: str | None = None
    """Folder with data sets, searched first and used for downloads; null = data in Esper's cache folder."""
    url: str | None = None
    """Address of a mirror folder with the files to download; null = the original server."""
    verify: bool = True
    """Refuse files that differ from the published ones; false = accept the existing files, such as a changed copy."""
    num_val: int | None = None
    """Number of validation samples, for reward and observations (for text: windows of bytes); null = the task's own
    number. Where val is taken from the training samples, the rest trains.
    """
    max_samples: int | None = None
    """Largest number of samples in each split, for a quick trial; null = all."""
    context_length: int | None = None
    """Tokens in a window of text; null = the task's own number."""
    vocab_size: int | None = None
    """Tokens of a byte-pair encoding trained on the text, and cached (needs the extra ``text``); null = bytes."""
    crop: int = 0
    """Pixels by which a training image may move in each direction, filled with its mirror image; 0 = off."""
    flip: bool = False
    """Mirror training images left to right with probability one half."""
    cutout: int = 0
    """Side of a square that is blanked in each training image; 0 = off."""

    def __post_init__(self) -> None:
        if self.root is not None:
            self.root = lasting(self.root)
        sensible("task.batch_size", self.batch_size, 1, MAX_BATCH)
        for key, bound in (("num_val", 1), ("max_samples", 1), ("context_length", 1), ("vocab_size", 258)):
            value = getattr(self, key)
            if value is not None:
                at_least(f"task.{key}", value, bound)
        for key in ("crop", "cutout"):
            at_least(f"task.{key}", getattr(self, key), 0)

    def options(self) -> dict[str, Any]:
        """Options of :func:`esper.tasks.load_task` besides name and device."""
        return {
            "root": None if self.root is None else Path(self.root).expanduser(),
            "url": self.url,
            "verify": self.verify,
            "num_val": self.num_val,
            "max_samples": self.max_samples,
            "context_length": self.context_length,
            "vocab_size": self.vocab_size,
        }


@dataclass(kw_only=True, slots=True)
class ArrivalConfig:
    """Classes that arrive while a host trains, in an epoch drawn for each host."""

    classes: int | None = None
    """Number of classes, drawn for each host, that it has before the others arrive; null = all from the start."""
    earliest: float = 0.25
    """Earliest arrival, as a share of the episode's epochs."""
    latest: float = 0.75
    """Latest arrival, as a share of the episode's epochs; before its last one in any case."""

    def __post_init__(self) -> None:
        if self.classes is not None:
            at_least("instances.arrival.classes", self.classes, 2)
        for key in ("earliest", "latest"):
            within(f"instances.arrival.{key}", getattr(self, key), 0, 1)
        at_most("instances.arrival.earliest", self.earliest, "instances.arrival.latest", self.latest)


@dataclass(kw_only=True, slots=True)
class InstancesConfig:
    """Section ``instances``: distribution of hosts. Without variety a fixed schedule is optimal and nothing can be
    learned.
    """

    families: dict[str, float] = field(default_factory=dict)
    """Relative frequency of each host family; 0 excludes it. A + combines faults: {starved_0+starved_2: 1}. {} = some
    of each kind that the host can have.
    """
    held_out_families: dict[str, float] = field(default_factory=dict)
    """Relative frequencies for held-out instances, for evaluation on families never trained on; {} = as in training."""
    block_faults: dict[str, float] = field(default_factory=dict)
    """Probability of each fault in each block, as in {starved: 0.35, centre_tap: 0.5}: every host draws its own join of
    faults, and none occurs in two of training, validation and held-out hosts. Takes the place of ``families``.
    """
    host_faults: dict[str, float] = field(default_factory=dict)
    """Relative frequencies of the faults of which each join has one more, intact for none: {intact: 1, lr_over_3: 1};
    {} = none.
    """
    num_train: int = 64
    """Number of instances that controllers are trained on."""
    num_held_out: int = 64
    """Number of instances kept for evaluation; disjoint from the training ones."""
    num_validation: int = 64
    """Number of instances for choosing a recipe, with evaluation.split=validation; disjoint from both."""
    base_seed: int = 0
    """Seed of all instances and of what separates joins, independent of the run's seed."""
    alive_channels: int = 2
    """Channels that a starved block keeps."""
    num_few_classes: int | None = None
    """Number of classes in the ``few_classes`` family; null = 4, or all but one if the task has at most 4."""
    data_fraction: float = 0.1
    """Share of the training samples kept in the ``few_samples`` family."""
    label_noise_rate: float = 0.3
    """Share of the training labels that are wrong in the ``label_noise`` family."""

    arrival: ArrivalConfig = field(default_factory=ArrivalConfig)
    """Classes that arrive later."""

    def __post_init__(self) -> None:
        for key, families in self.mixes().items():
            for family, weight in families.items():
                at_least(f"{key}.{family}", weight, 0)
            if families and not any(families.values()):
                raise ValueError(f"{key} must give a weight above 0 to at least one of {list(families)}")
        for fault, chance in self.block_faults.items():
            within(f"instances.block_faults.{fault}", chance, 0, 1)
        if self.host_faults and not self.block_faults:
            raise ValueError("instances.host_faults adds a fault to joins, which instances.block_faults must draw")
        for key in ("num_train", "num_held_out", "num_validation"):
            sensible(f"instances.{key}", getattr(self, key), 1, MAX_HOSTS)
        sensible("instances.base_seed", self.base_seed, 0, MAX_SEED)
        at_least("instances.alive_channels", self.alive_channels, 1)
        if self.num_few_classes is not None:
            at_least("instances.num_few_classes", self.num_few_classes, 2)
        for key in ("data_fraction", "label_noise_rate"):
            positive(f"instances.{key}", getattr(self, key))
            at_most(f"instances.{key}", getattr(self, key), "all of them", 1)

    def classes_kept(self, num_classes: int) -> int:
        """Return the number of classes in the ``few_classes`` family, at least two, for a task with ``num_classes``."""
        return max(2, min(4, num_classes - 1)) if self.num_few_classes is None else self.num_few_classes

    def mixes(self) -> dict[str, dict[str, float]]:
        """Mixes of families that were given, by key."""
        mixes = {"instances.families": self.families}
        if self.held_out_families:
            mixes["instances.held_out_families"] = self.held_out_families
        if self.host_faults:
            mixes["instances.host_faults"] = self.host_faults
        return mixes


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """Section ``env``: settings of the growth environment, in which one episode is one host's training."""

    num_epochs: int = 25
    """Host epochs in an episode, which is also its number of actions."""
    steps_per_epoch: int = 8
    """Minibatches in a host epoch, whatever the number of environments."""
    mapping: MappingName = MappingName.auto
    """Implementation that runs hosts as one program: a loop, vmap, grouped convolutions, or batched matrix products
    (tiny maps); _compiled = with torch.compile, for training; auto times them for a few seconds on this device and
    host, and remembers the fastest.
    """

    def __post_init__(self) -> None:
        at_least("env.num_epochs", self.num_epochs, 1)
        at_least("env.steps_per_epoch", self.steps_per_epoch, 1)


@dataclass(kw_only=True, slots=True)
class SlotsConfig:
    """Section ``slots``: slots for growth, limits on modules, and the numbers of the lifecycle's gates."""

    num_slots: int = 3
    """Number of slots, spread evenly over the places that the host offers."""
    ids: list[str] | None = None
    """Explicit slot ids such as ``[r0c0, r0c2]``, ``num_slots`` of them; null = spread evenly."""
    max_developing: int | None = None
    """Largest number of seed modules in GERMINATED and TRAINING at once; null = num_slots."""
    max_seeds: int | None = None
    """Largest number of seed modules in BLENDING, HOLDING, FOSSILIZED or fading at once; null = num_slots."""
    min_training_epochs: int = 5
    """Epochs in TRAINING, since the last EXTEND, before gate G2 can pass."""
    min_cull_age: int = 1
    """Trained epochs before a seed module can be culled."""
    embargo_epochs: int = 3
    """Epochs that a slot stays EMBARGOED after a cull."""
    resetting_epochs: int = 1
    """Epochs that a slot stays RESETTING after its embargo."""
    min_gradient_health: float = 0.7
    """Gradient health required by gate G2, in [0, 1]."""
    vanish_norm: float = 1e-6
    """Gradient norm below which a seed module's gradient counts as vanishing."""
    explode_norm: float = 1e3
    """Gradient norm above which a seed module's gradient counts as exploding."""
    isolate_until: IsolateUntil = IsolateUntil.blending
    """Stage from which host and seed module share gradients."""
    incubation: Incubation = Incubation.auxiliary
    """Learning signal of an isolated seed module."""
    incubate_every: int = 1
    """Training steps from one in which isolated seed modules learn to the next, from the first of an epoch on; in
    between they cost nothing.
    """
    param_budget: float = 4.0
    """Added parameters at which the observation saturates, in multiples of the host's own."""
    blueprints: list[str] | None = None
    """Blueprints that may germinate; null = all that fit the host."""

    def __post_init__(self) -> None:
        at_least("slots.num_slots", self.num_slots, 1)
        if self.ids is not None:
            distinct("slots.ids", self.ids)
            if len(self.ids) != self.num_slots:
                raise ValueError(
                    f"slots.ids names {len(self.ids)} slots ({', '.join(self.ids)}) but slots.num_slots is "
                    f"{self.num_slots}: set slots.num_slots={len(self.ids)}"
                )
        # A cap above num_slots is allowed and has no effect: a sweep over num_slots keeps its preset's caps.
        for key in ("max_developing", "max_seeds"):
            cap = getattr(self, key)
            if cap is not None:
                at_least(f"slots.{key}", cap, 1)
        at_least("slots.min_training_epochs", self.min_training_epochs, 1)
        at_least("slots.incubate_every", self.incubate_every, 1)
        for key in ("min_cull_age", "embargo_epochs", "resetting_epochs"):
            at_least(f"slots.{key}", getattr(self, key), 0)
        within("slots.min_gradient_health", self.min_gradient_health, 0, 1)
        at_least("slots.vanish_norm", self.vanish_norm, 0)
        positive("slots.explode_norm", self.explode_norm)
        if self.vanish_norm >= self.explode_norm:
            raise ValueError(
                f"slots.vanish_norm={self.vanish_norm} must be below slots.explode_norm={self.explode_norm}"
            )
        positive("slots.param_budget", self.param_budget)
        if self.blueprints is not None:
            distinct("slots.blueprints", self.blueprints)


@dataclass(kw_only=True, slots=True)
class ObservationConfig:
    """Section ``observation``: observations of a controller beyond the fixed layout."""

    slot_probes: list[str] = field(default_factory=list)
    """Statistics of the host at each slot to append, empty slots included: any of dead_channels, effective_rank,
    log_gradient_norm, log_first_order_gain, in this order; [] = the fixed layout only."""
    probe_every: int = 1
    """Epochs between measurements of the slot probes, after those of a new host's first batch; in between the last
    values are observed.
    """
    price: bool = False
    """Append the price of size, on a logarithmic scale: the points that doubling the host must earn."""
    scale_free: bool = False
    """Observe losses relative to the lowest one, gradients relative to the host's, and times and rates in twentieths of
    an episode, so that a factor on the loss or another number of epochs changes nothing but noise.
    """
    contribution_decay: float = 0.995
    """Factor on the freshness of a measured contribution per epoch since; it matters only with counterfactual.every >
    1.
    """
    num_features: int | None = None
    """Width of an observation, determined by slots, probes and price; null = that width, and any other is refused."""
    num_blueprints: int | None = None
    """Number of blueprints that an observation can name, built in and of plugins; null = that number, and any other is
    refused.
    """

    def __post_init__(self) -> None:
        if self.slot_probes:
            distinct("observation.slot_probes", self.slot_probes)
        at_least("observation.probe_every", self.probe_every, 1)
        if self.probe_every > 1 and not self.slot_probes:
            raise ValueError(
                f"observation.probe_every={self.probe_every} needs slot probes: observation.slot_probes=[]"
            )
        within("observation.contribution_decay", self.contribution_decay, 0, 1)


@dataclass(kw_only=True, slots=True)
class CounterfactualConfig:
    """Section ``counterfactual``: validation passes with modules switched off."""

    every: int = 1
    """Epochs between measurements of modules' contributions; in between the last value is carried and ages. FOSSILIZE
    waits for a measurement taken after the end of the ramp.
    """
    pairs_every: int = 5
    """Epochs between passes with single modules on, from which interactions of three or more modules follow; 0 =
    never.
    """
    shapley_permutations: int = 0
    """Orders of switching modules on that are averaged into Shapley values at the end of each episode, for
    events.jsonl; all orders if there are no more than these; 0 = never.
    """
    max_configurations: int = 64
    """Largest number of configurations that pairs, or Shapley values, may evaluate per environment. Pairs of three
    modules or more are skipped if they need more; orders are skipped as soon as they would.
    """

    def __post_init__(self) -> None:
        at_least("counterfactual.every", self.every, 1)
        at_least("counterfactual.pairs_every", self.pairs_every, 0)
        at_least("counterfactual.shapley_permutations", self.shapley_permutations, 0)
        at_least("counterfactual.max_configurations", self.max_configurations, 1)
