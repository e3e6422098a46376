"""From a configuration to the parts of an experiment, each built from plain arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.blueprints import blueprint_ids, compatible
from esper.blueprints.contract import check_blueprints, users_blueprints
from esper.config.growth import IsolateUntil, Mapping
from esper.config.hosts import CustomConfig
from esper.config.learning import PPOConfig
from esper.config.root import Config, ScheduleStep
from esper.controllers import PlannedGermination
from esper.envs.features import continuous_features, num_features
from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.records import EnvSettings
from esper.envs.rewards import reward_family
from esper.envs.twins import HostTraining, Nursery, TwinCache
from esper.growth import GrowthRules
from esper.growth.actions import HEADS
from esper.growth.slots import select_slots
from esper.hosts import READS, SegmentedHost, build_host
from esper.policy import GrowthPolicy, Normaliser
from esper.population import MultiplyAdds, Population, build_mapping, chosen_probes, count_multiply_adds
from esper.population.calibration import Choice, choose_mapping, require_mapping
from esper.population.counterfactuals import evaluation_batch
from esper.population.mapping import Mapping as HostMapping
from esper.population.mapping.stacked import COMPILED_SUFFIX
from esper.population.workload import Workload
from esper.ppo import PPOSettings, linear_schedule
from esper.runtime.compiler import try_compiler
from esper.runtime.contracts import run
from esper.runtime.devices import resolve_devices, settle, spread
from esper.runtime.precision import AUTOCAST_DTYPES
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.rng import derive_seed, global_streams
from esper.tasks import TaskData, load_task
from esper.tasks.augment import Augmentation

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """What every environment of one rank shares: data, host, slots, instances.

    ``config.env.mapping`` is never ``auto`` here: what a laboratory's environments, twins and checkpoints are made from
    names the mapping that ``choice`` made.
    """

    config: Config
    ranks: Ranks
    choice: Choice
    mapping: HostMapping
    device: torch.device
    task: TaskData
    host: SegmentedHost
    slot_ids: tuple[str, ...]
    compatible: Tensor
    costs: MultiplyAdds
    nursery: Nursery

    def population(self, num_envs: int) -> Population:
        """An empty population of ``num_envs`` hosts."""
        return Population(
            self.host,
            self.slot_ids,
            num_envs,
            self.mapping,
            device=self.device,
            autocast_dtype=AUTOCAST_DTYPES[self.config.amp.name],
        )

    def pool(self, split: str, count: int) -> InstancePool:
        """The first ``count`` instances of a split."""
        return InstancePool(instance_pool(self.config, self.task, split).instances[:count])

    @property
    def max_seeds(self) -> int:
        """Modules that may be kept in a host."""
        return min(growth_rules(self.config).max_seeds, len(self.slot_ids))

    def share(self, count: int) -> range:
        """Which of ``count`` environments of all ranks are this rank's."""
        return spread(count, self.ranks.size)[self.ranks.rank]

    def twins(self, num_envs: int, progress: Progress) -> TwinCache:
        """A cache of never-grown twins for environments stacked ``num_envs`` high."""
        return TwinCache(self.nursery, lambda: self.population(num_envs), progress)

    def env(
        self, share: range, pool: InstancePool, twins: TwinCache | None, *, run_seed: int, measure_test: bool
    ) -> GrowthEnv:
        """A growth environment over a pool of instances, for this rank's share of all environments."""
        return GrowthEnv(
            self.population(len(share)),
            self.nursery,
            pool,
            twins=twins,
            family=reward_family(self.config.reward.family),
            rules=growth_rules(self.config),
            compatible=self.compatible,
            costs=self.costs,
            settings=_env_settings(self.config),
            run_seed=run_seed,
            first=share.start,
            measure_test=measure_test,
        )

    def policy(self) -> tuple[GrowthPolicy, Normaliser]:
        """A new policy, initialised from the run's seed, and its normaliser."""
        policy, num_slots = self.config.policy, len(self.slot_ids)
        probes = chosen_probes(self.config.observation.slot_probes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("policy", self.config.seed))
            network = GrowthPolicy(
                num_features(num_slots, len(probes)),
                num_slots,
                len(blueprint_ids()),
                num_probes=len(probes),
                embedding_dim=policy.embedding_dim,
                encoder_dim=policy.encoder_dim,
                lstm_dim=policy.lstm_dim,
                head_dim=policy.head_dim,
                blueprint_head_dims=policy.blueprint_head_dims,
                value_dim=policy.value_dim,
                conditional_heads=policy.conditional_heads,
                slot_head=policy.slot_head.name,
                critic=policy.critic.name,
                autocast_dtype=AUTOCAST_DTYPES[self.config.amp.name],
            )
        normaliser = Normaliser(continuous_features(num_slots, probes))
        return network.to(self.device), normaliser.to(self.device)

    def schedule(self) -> list[PlannedGermination]:
        """Plan of the schedule controller."""
        return [
            PlannedGermination(step.epoch, step.slot, self._planned(step))
            for step in self.config.evaluation.schedule.values()
        ]

    def _planned(self, step: ScheduleStep) -> int:
        """The blueprint of a step: the one that it names, or the first that fits its slot."""
        if step.blueprint is not None:
            return blueprint_ids().index(step.blueprint)
        return int(self.compatible[step.slot].long().argmax())


def instance_pool(config: Config, task: TaskData, split: str) -> InstancePool:
    """All instances of a split."""
    instances = config.instances
    families, size = instances.families, instances.num_train
    if split == "held_out":
        families, size = instances.held_out_families or families, instances.num_held_out
    return InstancePool.build(
        families,
        size,
        split,
        host_family=config.host.name,
        num_blocks=config.host.num_blocks,
        num_classes=task.num_classes,
        num_few_classes=instances.classes_kept(task.num_classes),
        data_fraction=instances.data_fraction,
        label_noise_rate=instances.label_noise_rate,
    )


def build_task_host(config: Config, task: TaskData) -> SegmentedHost:
    """The host that a configuration asks for, in the shape of its task."""
    name = config.host.name
    if task.kind not in READS[name]:
        able = " or ".join(f"host={other}" for other, kinds in READS.items() if task.kind in kinds)
        raise ValueError(f"host={name} reads {READS[name][0]}, but task {task.name} has {task.kind}: choose {able}")
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
    """Refuse users' blueprints that may grow in a host and must not, and users' hosts that fail on a run's batches.

    Args:
        config: of the run.
        task: what its hosts read.
        host: prototype, on the CPU.
        slot_ids: places used as slots.

    Raises:
        ValueError: names the blueprint or host, where it is written, what it does and what it should.
    """
    batches = _batches(config, task)
    if isinstance(config.host, CustomConfig):
        for size in batches:
            x = task.prepare(task.train.inputs[torch.arange(size) % len(task.train.inputs)]).cpu()
            with torch.no_grad(), global_streams():
                run(f"host.target: {config.host.target}", host, x)
    sites: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    sample = task.prepare(task.train.inputs[:1]).cpu()
    for place in map(host.place, slot_ids):
        if users_blueprints(place.family):
            with torch.no_grad():
                feature = host.forward_to(place.slot_id, sample)
            sites.setdefault(place.site, set()).add(tuple(feature.shape[1:]))
    check_blueprints(sites, config.slots.blueprints, causal=task.kind == "tokens", batches=batches)


def _batches(config: Config, task: TaskData) -> tuple[int, int]:
    """Samples that one host is trained on at once, and the most that it is evaluated on."""
    inputs, targets = task.val.inputs, task.val.targets
    most = evaluation_batch(inputs, targets, config.trainer.num_envs, task.num_classes)
    return config.task.batch_size, min(most, max(len(inputs), len(task.test.inputs)))


def build_laboratory(config: Config, ranks: Ranks = ALONE, choice: Choice | None = None) -> Laboratory:
    """Load the data onto this rank's device and build what its environments share.

    Args:
        config: of the run.
        ranks: this process among those of the run.
        choice: a mapping chosen elsewhere, in place of what ``env.mapping`` asks for.

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
    config = replace(config, env=replace(config.env, mapping=Mapping[choice.mapping]))
    training = HostTraining(
        num_epochs=config.env.num_epochs,
        steps_per_epoch=config.env.steps_per_epoch,
        batch_size=config.task.batch_size,
        lr=config.host.lr,
        max_grad_norm=config.host.max_grad_norm,
        alive_channels=config.instances.alive_channels,
        augmentation=Augmentation(crop=config.task.crop, flip=config.task.flip, cutout=config.task.cutout),
    )
    return Laboratory(
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
        nursery=Nursery(task, host, training),
    )


def compile_lines(config: Config, device: torch.device, *, learns: bool = True) -> list[str]:
    """Lines for a person before something is compiled for a CPU, where that hardly ever pays.

    Args:
        config: whose mapping has been chosen.
        device: where it is to run.
        learns: whether the policy is trained, which alone compiles it.
    """
    if device.type != "cpu":
        return []
    mapping = config.env.mapping.name
    plain = mapping.removesuffix(COMPILED_SUFFIX)
    slow = {"policy.compile=true": "policy.compile=false"} if config.policy.compile and learns else {}
    slow |= {f"env.mapping={mapping}": f"env.mapping={plain}"} if plain != mapping else {}
    return [
        f"{key} on a CPU: compiling takes a minute or more and seldom makes the rest faster; {other} starts at once"
        for key, other in slow.items()
    ]


def require_compiler(config: Config, device: torch.device) -> None:
    """See to it that a policy which is to be compiled can be; a mapping has shown it when it was chosen.

    Raises:
        ValueError: it cannot be on this device.
    """
    if config.policy.compile:
        try:
            try_compiler(device)
        except ValueError as error:
            raise ValueError(f"policy.compile=true: {error}; policy.compile=false runs without") from error


def _choose(
    config: Config, task: TaskData, host: SegmentedHost, slot_ids: tuple[str, ...], compatible: Tensor, num_envs: int
) -> Choice:
    """The mapping that a configuration names, once it has shown that it can, or the fastest one."""
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
        incubation=config.slots.incubation.name,
        autocast_dtype=AUTOCAST_DTYPES[config.amp.name],
    )
    if config.env.mapping is Mapping.auto:
        return choose_mapping(workload)
    return require_mapping(workload, config.env.mapping.name)


def growth_rules(config: Config) -> GrowthRules:
    """Limits and times of the lifecycle."""
    slots = config.slots
    assert slots.max_developing is not None, "nulls are resolved on loading"
    assert slots.max_seeds is not None, "nulls are resolved on loading"
    return GrowthRules(
        max_developing=slots.max_developing,
        max_seeds=slots.max_seeds,
        min_training_epochs=slots.min_training_epochs,
        min_cull_age=slots.min_cull_age,
        embargo_epochs=slots.embargo_epochs,
        resetting_epochs=slots.resetting_epochs,
        min_gradient_health=slots.min_gradient_health,
        vanish_norm=slots.vanish_norm,
        explode_norm=slots.explode_norm,
    )


def _env_settings(config: Config) -> EnvSettings:
    return EnvSettings(
        incubation=config.slots.incubation.name,
        isolate_until_fossilized=config.slots.isolate_until is IsolateUntil.fossilized,
        contributions_every=config.counterfactual.every,
        pairs_every=config.counterfactual.pairs_every,
        shapley_permutations=config.counterfactual.shapley_permutations,
        max_configurations=config.counterfactual.max_configurations,
        gamma=config.ppo.gamma,
        rent_weight=config.reward.rent_weight,
        rent_kind=config.reward.rent.name,
        stage_shaping=config.reward.stage_shaping,
        crash_penalty=config.reward.crash_penalty,
        reward_scale=config.reward.scale,
        param_budget=config.slots.param_budget,
        slot_probes=chosen_probes(config.observation.slot_probes),
        contribution_decay=config.observation.contribution_decay,
    )


def ppo_settings(config: Config) -> PPOSettings:
    """Numbers of a policy update."""
    ppo = config.ppo
    return PPOSettings(
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        num_minibatches=ppo.num_minibatches,
        update_epochs=ppo.update_epochs,
        norm_adv=ppo.norm_adv,
        clip_coef=ppo.clip_coef,
        clip_vloss=ppo.clip_vloss,
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        ratio=ppo.ratio.name,
        entropy_multipliers=tuple(getattr(ppo.entropy_multipliers, head) for head in HEADS),
    )


def scheduled(ppo: PPOConfig, update: int) -> tuple[float, float]:
    """Learning rate and entropy coefficient of an update, numbered from 0."""
    ent_coef = linear_schedule(update, ppo.ent_coef, ppo.ent_coef_final, ppo.anneal_iterations)
    return linear_schedule(update, ppo.lr, 0.0, ppo.anneal_iterations) if ppo.anneal_lr else ppo.lr, ent_coef
