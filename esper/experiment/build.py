"""Building of an experiment and its parts from a configuration, each from plain arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.algorithms import Algorithm, AlgorithmContext, build_algorithm
from esper.blueprints import blueprint_ids, compatible
from esper.blueprints.contract import check_blueprints, users_blueprints
from esper.config.hosts import chosen_by
from esper.config.root import Config, ScheduleStep
from esper.controllers import PlannedGermination, Space
from esper.envs.arrivals import Arrivals
from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.joins import Joins
from esper.envs.loader import HostTraining, InstanceLoader
from esper.envs.rewards import REWARDS
from esper.envs.twins import TwinCache
from esper.experiment.acting import build_policy, env_settings, growth_rules
from esper.experiment.learning import a2c_settings, ppo_settings
from esper.growth.slots import select_slots
from esper.hosts import HOSTS, SegmentedHost, build_host
from esper.policy import GrowthPolicy, Normaliser
from esper.population import MultiplyAdds, Population, build_mapping, count_multiply_adds
from esper.population.calibration import Choice, choose_mapping, require_mapping
from esper.population.counterfactuals import evaluation_batch
from esper.population.mapping import Mapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.workload import Workload
from esper.runtime.compiler import try_compiler
from esper.runtime.contracts import run
from esper.runtime.devices import resolve_devices, settle, spread
from esper.runtime.options import MappingName
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.rng import global_streams
from esper.tasks import TaskData, load_task
from esper.tasks.augment import Augmentation

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Objects shared by every environment of one rank: data, host, slots, instances.

    ``config.env.mapping`` is never ``auto`` here: the configuration of environments, twins and checkpoints names the
    mapping in ``choice``.
    """

    config: Config
    ranks: Ranks
    choice: Choice
    mapping: Mapping
    device: torch.device
    task: TaskData
    host: SegmentedHost
    slot_ids: tuple[str, ...]
    compatible: Tensor
    costs: MultiplyAdds
    loader: InstanceLoader

    def population(self, num_envs: int) -> Population:
        """Build an empty population of ``num_envs`` hosts."""
        return Population(
            self.host,
            self.slot_ids,
            num_envs,
            self.mapping,
            device=self.device,
            autocast_dtype=self.config.amp.dtype,
        )

    def num_hosts(self, split: str) -> int:
        """Return the number of instances that are played of a split: held-out ones are those of an evaluation."""
        count: int = getattr(self.config.instances, f"num_{split}")
        return self.config.evaluation.num_hosts if split == "held_out" else count

    def pool(self, split: str, count: int) -> InstancePool:
        """Return the first ``count`` instances of a split."""
        pool = instance_pool(self.config, self.task, split)
        return replace(pool, instances=pool.instances[:count])

    @property
    def max_seeds(self) -> int:
        """Largest number of modules that may be kept in a host."""
        return min(growth_rules(self.config).max_seeds, len(self.slot_ids))

    @property
    def space(self) -> Space:
        """Slots and blueprints that controllers choose among."""
        return Space(self.slot_ids, self.compatible, self.max_seeds, self.config.env.num_epochs)

    def share(self, count: int) -> range:
        """Return which of ``count`` environments of all ranks are this rank's."""
        return spread(count, self.ranks.size)[self.ranks.rank]

    def twins(self, num_envs: int, progress: Progress) -> TwinCache:
        """Build a cache of never-grown twins for stacks of ``num_envs`` environments."""
        return TwinCache(self.loader, lambda: self.population(num_envs), progress)

    def env(
        self, share: range, pool: InstancePool, twins: TwinCache | None, *, run_seed: int, measure_test: bool
    ) -> GrowthEnv:
        """Build a growth environment over a pool of instances, for this rank's share of all environments."""
        return GrowthEnv(
            self.population(len(share)),
            self.loader,
            pool,
            twins=twins,
            family=REWARDS.find(self.config.reward.family, "reward.family"),
            rules=growth_rules(self.config),
            compatible=self.compatible,
            costs=self.costs,
            settings=env_settings(self.config),
            run_seed=run_seed,
            first=share.start,
            measure_test=measure_test,
        )

    def policy(self) -> tuple[GrowthPolicy, Normaliser]:
        """Build a new policy, initialised from the run's seed, and its normaliser."""
        return build_policy(self.config, len(self.slot_ids), self.device)

    def algorithm(self, policy: GrowthPolicy, env: GrowthEnv) -> Algorithm:
        """Build the algorithm that improves a policy on the rollouts of an environment of this rank."""
        config = self.config
        context = AlgorithmContext(
            policy=policy,
            gamma=env.settings.gamma,
            seed=config.seed,
            ppo=ppo_settings(config.ppo),
            a2c=a2c_settings(config.a2c),
            ranks=self.ranks,
            first_env=env.first,
        )
        return build_algorithm(config.algorithm, context)

    def schedule(self) -> list[PlannedGermination]:
        """Return the plan of the schedule controller."""
        return [
            PlannedGermination(step.epoch, step.slot, self._planned(step))
            for step in self.config.evaluation.schedule.values()
        ]

    def _planned(self, step: ScheduleStep) -> int:
        """Return the blueprint of a step: the one that it names, or the first that fits its slot."""
        if step.blueprint is not None:
            return blueprint_ids().index(step.blueprint)
        return int(self.compatible[step.slot].long().argmax())


def joins(config: Config) -> Joins | None:
    """Return the distribution of random joins of faults, if hosts are drawn from one."""
    if not config.instances.block_faults:
        return None
    return Joins(
        block_faults=config.instances.block_faults,
        host_faults=config.instances.host_faults,
        num_blocks=config.host.num_blocks,
        mixing_blocks=config.host.mixing_blocks,
    )


def arrivals(config: Config) -> Arrivals | None:
    """Return the distribution of the epoch in which classes arrive, if they do."""
    arrival, num_epochs = config.instances.arrival, config.env.num_epochs
    if arrival.classes is None:
        return None
    earliest, latest = (min(round(share * num_epochs), num_epochs - 1) for share in (arrival.earliest, arrival.latest))
    return Arrivals(num_first=arrival.classes, earliest=earliest, latest=latest)


def instance_pool(config: Config, task: TaskData, split: str) -> InstancePool:
    """Return all instances of a split."""
    instances = config.instances
    families = joins(config) or instances.families
    if split == "held_out":
        families = instances.held_out_families or families
    return InstancePool.build(
        families,
        getattr(instances, f"num_{split}"),
        split,
        host_family=config.host.name,
        num_blocks=config.host.num_blocks,
        num_classes=task.num_classes,
        num_few_classes=instances.classes_kept(task.num_classes),
        data_fraction=instances.data_fraction,
        label_noise_rate=instances.label_noise_rate,
        rent_weights=config.reward.rent_weights or (),
        arrivals=arrivals(config),
        base_seed=instances.base_seed,
    )


def build_task_host(config: Config, task: TaskData) -> SegmentedHost:
    """Build the configured host in the shape of its task."""
    name = config.host.name
    reads = HOSTS.find(name, "host.name").reads
    if task.kind not in reads:
        able = " or ".join(chosen_by(other) for other, kind in HOSTS.items() if task.kind in kind.reads)
        raise ValueError(f"{chosen_by(name)} reads {reads[0]}, but task {task.name} has {task.kind}: choose {able}")
    numbers: dict[str, object] = {"num_classes": task.num_classes}
    if name == "custom":
        inputs = task.train.inputs
        numbers["sample"] = task.prepare(inputs[torch.arange(2, device=inputs.device) % len(inputs)]).cpu()
    elif task.kind == "tokens":
        numbers["context_length"] = task.context_length
    else:
        numbers |= {"in_channels": task.in_channels, "image_size": task.image_size}
    return build_host(name, **numbers, **config.host.shape())


def check_growth(config: Config, task: TaskData, host: SegmentedHost, slot_ids: Sequence[str]) -> None:
    """Refuse users' blueprints that may grow in a host but are invalid, and users' hosts that fail on a run's batches.

    Args:
        config: configuration of the run.
        task: data of its hosts.
        host: prototype, on the CPU.
        slot_ids: places used as slots.

    Raises:
        ValueError: a blueprint or host is invalid; the message names it, its source, the fault and the requirement.
    """
    batches = _batches(config, task)
    if config.host.users is not None:
        for size in batches:
            x = task.prepare(task.train.inputs[torch.arange(size) % len(task.train.inputs)]).cpu()
            with torch.no_grad(), global_streams():
                run(config.host.users, host, x)
    sites: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    sample = task.prepare(task.train.inputs[:1]).cpu()
    for place in map(host.place, slot_ids):
        if users_blueprints(place.family):
            with torch.no_grad():
                feature = host.forward_to(place.slot_id, sample)
            sites.setdefault(place.site, set()).add(tuple(feature.shape[1:]))
    check_blueprints(sites, config.slots.blueprints, causal=task.kind == "tokens", batches=batches)


def _batches(config: Config, task: TaskData) -> tuple[int, int]:
    """Return the batch size of one host in training, and its largest batch size in evaluation."""
    inputs, targets = task.val.inputs, task.val.targets
    most = evaluation_batch(inputs, targets, config.trainer.num_envs, task.num_classes)
    return config.task.batch_size, min(most, max(len(inputs), len(task.test.inputs)))


def build_experiment(config: Config, ranks: Ranks = ALONE, choice: Choice | None = None) -> Experiment:
    """Load the data onto this rank's device and build what its environments share.

    Args:
        config: configuration of the run.
        ranks: the ranks of the run.
        choice: a mapping chosen elsewhere, which replaces ``env.mapping``.

    Raises:
        ValueError: an unknown name, more slots than the host offers, no mapping that can run it, or too few
            environments for the ranks.
    """
    config.check_shares(ranks.size)
    device = resolve_devices(config.devices, ranks.local_size)[ranks.local_rank]
    settle(device)
    task = load_task(config.task.name, device, **config.task.options())
    host = build_task_host(config, task)
    slot_ids = select_slots(host.slot_ids, config.slots.num_slots, config.slots.ids)
    check_growth(config, task, host, slot_ids)
    fits = compatible(host.place(slot_id).site for slot_id in slot_ids)
    if config.slots.blueprints is not None:
        fits &= torch.tensor([name in config.slots.blueprints for name in blueprint_ids()])
    if choice is None:
        num_envs = len(spread(config.trainer.num_envs, ranks.size)[0])
        choice = ranks.broadcast(_choose(config, task, host, slot_ids, fits, num_envs) if ranks.is_first else None)
        assert choice is not None, "the first rank has chosen"
    config = replace(config, env=replace(config.env, mapping=MappingName(choice.mapping)))
    training = HostTraining(
        num_epochs=config.env.num_epochs,
        steps_per_epoch=config.env.steps_per_epoch,
        batch_size=config.task.batch_size,
        lr=config.host.lr,
        max_grad_norm=config.host.max_grad_norm,
        alive_channels=config.instances.alive_channels,
        augmentation=Augmentation(crop=config.task.crop, flip=config.task.flip, cutout=config.task.cutout),
    )
    return Experiment(
        config=config,
        ranks=ranks,
        choice=choice,
        mapping=build_mapping(choice.mapping),
        device=device,
        task=task,
        host=host,
        slot_ids=slot_ids,
        compatible=fits,
        costs=count_multiply_adds(host, slot_ids, fits, task.prepare(task.train.inputs[:1]).cpu()),
        loader=InstanceLoader(task, host, training),
    )


def compile_lines(config: Config, device: torch.device, *, learns: bool = True) -> list[str]:
    """Return warnings before compiling for a CPU, where compilation hardly ever pays off.

    Args:
        config: configuration with a chosen mapping.
        device: device to run on.
        learns: true if the policy is trained; otherwise it is not compiled.
    """
    if device.type != "cpu":
        return []
    mapping = config.env.mapping
    plain = mapping.removesuffix(COMPILED_SUFFIX)
    slow = {"policy.compile=true": "policy.compile=false"} if config.policy.compile and learns else {}
    slow |= {f"env.mapping={mapping}": f"env.mapping={plain}"} if plain != mapping else {}
    return [
        f"{key} on a CPU: compiling takes a minute or more and seldom makes the rest faster; {other} starts at once"
        for key, other in slow.items()
    ]


def require_compiler(config: Config, device: torch.device) -> None:
    """Check that a policy can be compiled if it should be; a mapping was tested when it was chosen.

    Raises:
        ValueError: compilation fails on this device.
    """
    if config.policy.compile:
        try:
            try_compiler(device)
        except ValueError as error:
            raise ValueError(f"policy.compile=true: {error}; policy.compile=false runs without") from error


def _choose(
    config: Config, task: TaskData, host: SegmentedHost, slot_ids: tuple[str, ...], compatible: Tensor, num_envs: int
) -> Choice:
    """Return the configured mapping after a trial, or the fastest one."""
    workload = Workload(
        host=host,
        slot_ids=slot_ids,
        compatible=compatible,
        num_envs=num_envs,
        inputs=task.train.inputs,
        targets=task.train.targets,
        val_inputs=task.val.inputs,
        val_targets=task.val.targets,
        prepare=task.prepare,
        batch_size=config.task.batch_size,
        steps_per_epoch=config.env.steps_per_epoch,
        incubation=config.slots.incubation,
        autocast_dtype=config.amp.dtype,
    )
    if config.env.mapping is MappingName.auto:
        return choose_mapping(workload)
    return require_mapping(workload, config.env.mapping)
