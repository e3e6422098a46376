"""What grows, on what data: task, instances, environment, slots, observation, counterfactuals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from esper.config.checks import MAX_BATCH, MAX_HOSTS, at_least, at_most, distinct, positive, sensible, within
from esper.config.paths import expanded


class Mapping(StrEnum):
    """How a population maps a host over its environments; all compute the same thing. auto = the fastest here."""

    auto = "auto"
    loop = "loop"
    vmap = "vmap"
    grouped = "grouped"
    matmul = "matmul"
    vmap_compiled = "vmap_compiled"
    grouped_compiled = "grouped_compiled"
    matmul_compiled = "matmul_compiled"


class IsolateUntil(StrEnum):
    """Stage from which gradients flow through host and seed module jointly."""

    blending = "blending"
    fossilized = "fossilized"


class Incubation(StrEnum):
    """Where an isolated seed module gets its gradient from."""

    auxiliary = "auxiliary"
    straight_through = "straight_through"


@dataclass(kw_only=True, slots=True)
class TaskConfig:
    """The data that hosts train on."""

    name: str = "digits"
    """Which task, from the task registry."""
    batch_size: int = 64
    """Samples in each host's own minibatch."""
    root: str | None = None
    """Folder with data sets, looked into first and downloaded to; null = data in Esper's cache folder."""
    url: str | None = None
    """Address of a folder that has the files to download, a mirror; null = where they were published."""
    verify: bool = True
    """Refuse files that do not hold what was published; false = train on what is there, such as a changed copy."""
    num_val: int | None = None
    """Samples that validate, for reward and observations, in text as many windows of bytes; null = the task's own
    number. Where val is cut off the training samples, the others train."""
    max_samples: int | None = None
    """At most so many samples in each split, for a quick look; null = all."""
    context_length: int | None = None
    """Tokens in a window of text; null = the task's own number."""
    vocab_size: int | None = None
    """Tokens of a byte-pair encoding trained on the text, and cached (needs the extra ``text``); null = bytes."""
    crop: int = 0
    """Pixels by which a training image may move in each direction, its mirror image entering; 0 = off."""
    flip: bool = False
    """Mirror every other training image, left to right."""
    cutout: int = 0
    """Side of a square that is blanked in each training image; 0 = off."""

    def __post_init__(self) -> None:
        if self.root is not None:
            self.root = expanded(self.root)
        sensible("task.batch_size", self.batch_size, 1, MAX_BATCH)
        for key, bound in (("num_val", 1), ("max_samples", 1), ("context_length", 1), ("vocab_size", 258)):
            value = getattr(self, key)
            if value is not None:
                at_least(f"task.{key}", value, bound)
        for key in ("crop", "cutout"):
            at_least(f"task.{key}", getattr(self, key), 0)

    def options(self) -> dict[str, Any]:
        """What :func:`esper.tasks.load_task` takes besides name and device."""
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
class InstancesConfig:
    """Which hosts an environment may draw: without variety a fixed schedule is optimal and nothing can be learned."""

    families: dict[str, float] = field(default_factory=dict)
    """Relative frequency of each host family; 0 leaves it out. A + joins faults: {starved_0+starved_2: 1}. {} = some of
    each kind that the host can have."""
    held_out_families: dict[str, float] = field(default_factory=dict)
    """The same for the held-out instances, for evaluation on families never trained on; {} = as in training."""
    num_train: int = 64
    """Instances that controllers are trained on."""
    num_held_out: int = 64
    """Instances kept for evaluation; disjoint from the training ones."""
    alive_channels: int = 2
    """Channels that a starved block keeps."""
    num_few_classes: int | None = None
    """Classes that remain in the ``few_classes`` family; null = 4, or all but one where the task has no more."""
    data_fraction: float = 0.1
    """Share of the training samples that remain in the ``few_samples`` family."""
    label_noise_rate: float = 0.3
    """Share of the training labels that are wrong in the ``label_noise`` family."""

    def __post_init__(self) -> None:
        for key, families in self.mixes().items():
            for family, weight in families.items():
                at_least(f"{key}.{family}", weight, 0)
            if families and not any(families.values()):
                raise ValueError(f"{key} must give a weight above 0 to at least one of {list(families)}")
        sensible("instances.num_train", self.num_train, 1, MAX_HOSTS)
        sensible("instances.num_held_out", self.num_held_out, 1, MAX_HOSTS)
        at_least("instances.alive_channels", self.alive_channels, 1)
        if self.num_few_classes is not None:
            at_least("instances.num_few_classes", self.num_few_classes, 2)
        for key in ("data_fraction", "label_noise_rate"):
            positive(f"instances.{key}", getattr(self, key))
            at_most(f"instances.{key}", getattr(self, key), "all of them", 1)

    def classes_kept(self, num_classes: int) -> int:
        """Classes that remain of so many in the ``few_classes`` family, at least two."""
        return max(2, min(4, num_classes - 1)) if self.num_few_classes is None else self.num_few_classes

    def mixes(self) -> dict[str, dict[str, float]]:
        """The mixes of families that were given, by key."""
        mixes = {"instances.families": self.families}
        if self.held_out_families:
            mixes["instances.held_out_families"] = self.held_out_families
        return mixes


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """The growth environment: one episode is one host's training."""

    num_epochs: int = 25
    """Host epochs in an episode, which is also its number of actions."""
    steps_per_epoch: int = 8
    """Minibatches in a host epoch, whatever the number of environments."""
    mapping: Mapping = Mapping.auto
    """How hosts are run as one program: a loop, vmap, grouped convolutions, or batched matrix products (tiny maps);
    _compiled = the host's parts as machine code (torch.compile), for training; auto times them for a few seconds on
    this device and host, and remembers the fastest."""

    def __post_init__(self) -> None:
        at_least("env.num_epochs", self.num_epochs, 1)
        at_least("env.steps_per_epoch", self.steps_per_epoch, 1)


@dataclass(kw_only=True, slots=True)
class SlotsConfig:
    """Where modules may grow, how many, and the numbers of the lifecycle's gates."""

    num_slots: int = 3
    """Number of slots, spread evenly over the places that the host offers."""
    ids: list[str] | None = None
    """Explicit slot ids such as ``[r0c0, r0c2]``, ``num_slots`` of them; null = spread evenly."""
    max_developing: int | None = None
    """Most seed modules in GERMINATED and TRAINING at once; null = num_slots."""
    max_seeds: int | None = None
    """Most seed modules in BLENDING, HOLDING, FOSSILIZED or fading at once; null = num_slots."""
    min_training_epochs: int = 5
    """Epochs in TRAINING, since the last EXTEND, before gate G2 can pass."""
    min_cull_age: int = 1
    """Trained epochs before a seed module can be culled."""
    embargo_epochs: int = 3
    """Epochs that a slot stays EMBARGOED after a cull."""
    resetting_epochs: int = 1
    """Epochs that a slot stays RESETTING after its embargo."""
    min_gradient_health: float = 0.7
    """Gradient health that gate G2 asks for, in [0, 1]."""
    vanish_norm: float = 1e-6
    """Gradient norm below which a seed module's gradient counts as vanishing."""
    explode_norm: float = 1e3
    """Gradient norm above which a seed module's gradient counts as exploding."""
    isolate_until: IsolateUntil = IsolateUntil.blending
    """Stage from which host and seed module share gradients."""
    incubation: Incubation = Incubation.auxiliary
    """Learning signal of an isolated seed module."""
    param_budget: float = 4.0
    """Parameters that may be added before the observation saturates, in multiples of the host's own."""
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
        # A cap above num_slots is no contradiction, only idle: a sweep over num_slots keeps its preset's caps.
        for key in ("max_developing", "max_seeds"):
            cap = getattr(self, key)
            if cap is not None:
                at_least(f"slots.{key}", cap, 1)
        at_least("slots.min_training_epochs", self.min_training_epochs, 1)
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
    """What a controller sees beyond the fixed layout."""

    slot_probes: list[str] = field(default_factory=list)
    """Statistics of the host at each slot to append, empty slots included: any of dead_channels, effective_rank,
    log_gradient_norm, log_first_order_gain, in this order; [] = the fixed layout only."""
    contribution_decay: float = 0.995
    """Freshness of a measured contribution that is left after each epoch since; it falls with counterfactual.every > 1
    only."""
    num_features: int | None = None
    """Width of an observation, which slots and probes decide; null = that, and another number is refused."""
    num_blueprints: int | None = None
    """Blueprints that an observation can name, built in and of plugins; null = as many as there are, and another number
    is refused."""

    def __post_init__(self) -> None:
        if self.slot_probes:
            distinct("observation.slot_probes", self.slot_probes)
        within("observation.contribution_decay", self.contribution_decay, 0, 1)


@dataclass(kw_only=True, slots=True)
class CounterfactualConfig:
    """Validation passes with modules switched off."""

    every: int = 1
    """Epochs between measurements of what each module is worth; in between the last value is carried and grows older.
    FOSSILIZE waits for one since the ramp ended."""
    pairs_every: int = 5
    """Epochs between the solo passes from which interactions of three or more modules come; 0 = never."""
    shapley_permutations: int = 0
    """Orders of switching modules on, over which their Shapley values are averaged at the end of each episode, for
    events.jsonl; all orders if there are no more than these; 0 = never."""
    max_configurations: int = 64
    """Most configurations that pairs, or Shapley values, may evaluate per environment. Pairs of three modules or more
    are left out where they need more; orders are left out as soon as they would."""

    def __post_init__(self) -> None:
        at_least("counterfactual.every", self.every, 1)
        at_least("counterfactual.pairs_every", self.pairs_every, 0)
        at_least("counterfactual.shapley_permutations", self.shapley_permutations, 0)
        at_least("counterfactual.max_configurations", self.max_configurations, 1)
