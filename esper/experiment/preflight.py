"""Checks of a configuration against the registries, the host and the machine, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from esper.blueprints import BLUEPRINTS, blueprint_ids, build_blueprint, compatible
from esper.config.evaluate import EvaluateConfig
from esper.config.root import Config
from esper.config.wandb import WandbConfig
from esper.growth.slots import select_slots
from esper.hosts import HOSTS, Place, SegmentedHost, parse_faults
from esper.runtime.checks import at_most
from esper.runtime.choices import known
from esper.runtime.contracts import check_forward
from esper.runtime.devices import resolve_devices
from esper.runtime.options import WandbMode
from esper.runtime.placement import outside_placement
from esper.runtime.precision import check_amp
from esper.tasks import TASKS, TaskData, load_task


def preflight(config: Config) -> None:
    """Refuse unknown names, slots that the host does not offer, and devices that do not exist or lack the precision.

    Raises:
        ValueError: a value is refused; the message names the key, the value and the choices.
    """
    devices = visible_to_ranks(config)
    # Imported here, because the configuration itself must not need these slow imports.
    from esper.algorithms import ALGORITHMS
    from esper.controllers import CONTROLLERS, needed_by
    from esper.envs.rewards import REWARDS
    from esper.experiment.checkpoint import checkpoint_path, load_checkpoint
    from esper.experiment.imitating import check_expert
    from esper.experiment.transfer import check_source
    from esper.population import PROBE_NAMES
    from esper.telemetry.loggers import check_logger

    TASKS.find(config.task.name, "task.name")
    HOSTS.find(config.host.name, "host.name")
    ALGORITHMS.find(config.algorithm, "algorithm")
    REWARDS.find(config.reward.family, "reward.family")
    for probe in config.observation.slot_probes:
        known("observation.slot_probes", probe, PROBE_NAMES)
    if config.observation.num_blueprints != len(blueprint_ids()):
        raise ValueError(
            f"observation.num_blueprints must be {len(blueprint_ids())} ({', '.join(blueprint_ids())}), got "
            f"{config.observation.num_blueprints}: leave it out, or name in plugins what registers the others"
        )
    for controller in config.evaluation.controllers:
        CONTROLLERS.find(controller, "evaluation.controllers")
        if needed := needed_by(controller):
            choices = [name for name in CONTROLLERS if not needed_by(name)]
            raise ValueError(
                f"evaluation.controllers: {controller!r} needs {needed}, so it belongs to "
                f"python -m esper.evaluate; choose from {', '.join(choices)}"
            )
    if config.imitation.controller is not None:
        check_expert(config.imitation.controller)
    for logger in config.telemetry.loggers:
        check_logger(logger)
    for device in dict.fromkeys(devices):
        check_amp(config.amp, device)
    check_mirror(config.wandb)
    _check_host(config)
    if config.checkpoint.path is not None:
        check_source(load_checkpoint(checkpoint_path(config.checkpoint.path)), config)


def visible_to_ranks(config: Config | EvaluateConfig) -> list[torch.device]:
    """Return the devices of this machine's ranks; checked first, because it needs nothing else.

    Raises:
        ValueError: a device does not exist, the number of devices differs from that of ranks, or there is less work
            than ranks.
    """
    placement = outside_placement()
    devices = resolve_devices(config.devices, placement.local_size if placement else None)
    if isinstance(config, Config):
        config.check_shares(placement.size if placement else len(devices))
    return devices


def check_mirror(wandb: WandbConfig) -> None:
    """Refuse mirroring without its package, and online mirroring without a login.

    Raises:
        ValueError: the message explains what to install, or how to log in.
    """
    if wandb.mode in (None, WandbMode.disabled):
        return
    from esper.telemetry.loggers import WANDB, require
    from esper.telemetry.wandb_mirror import check_online

    require(WANDB, f"wandb.mode={wandb.mode}")
    if wandb.mode is WandbMode.online:
        check_online()


def _check_host(config: Config) -> None:
    # Imported here, because its slow imports would delay help and errors of use.
    from esper.envs.instances import SPLITS
    from esper.experiment.build import build_task_host, check_growth, joins

    drawn = joins(config)
    if drawn is not None:
        for split in SPLITS:
            drawn.draw_split(1, split, config.instances.base_seed)
    task = load_task(config.task.name, **config.task.options())
    _check_task(config, task)
    built = build_task_host(config, task)
    _check_first_pass(config, task, built)
    _check_families(config, task)
    _check_arrival(config, task)
    try:
        chosen = select_slots(built.slot_ids, config.slots.num_slots, config.slots.ids)
    except ValueError as error:
        raise ValueError(f"slots.{error}" if str(error).startswith("num_slots") else f"slots.ids: {error}") from error
    check_growth(config, task, built, chosen)
    places = [built.place(slot_id) for slot_id in chosen]
    for blueprint in config.slots.blueprints or ():
        _check_fits("slots.blueprints", blueprint, built.family, places)
    for name, step in config.evaluation.schedule.items():
        if step.blueprint is not None:
            _check_fits(f"evaluation.schedule.{name}.blueprint", step.blueprint, built.family, places)


def _check_first_pass(config: Config, task: TaskData, host: SegmentedHost) -> None:
    """Refuse data on which every host of this kind overflows, tested with its largest image, and a price of FLOPs for a
    host that has none.
    """
    # Imported here, because its slow imports would delay help and errors of use.
    from esper.population.flops import count_operations

    inputs = task.train.inputs
    largest = int(inputs.flatten(1).float().abs().amax(dim=1).argmax())
    x = task.prepare(inputs[largest : largest + 1]).cpu()
    check_forward(f"host={config.host.name} on training sample {largest} of task {task.name}", host, x)
    if config.reward.compute_weight and not count_operations(lambda: host(x)):
        raise ValueError(
            f"reward.compute_weight={config.reward.compute_weight:g} charges FLOPs relative to the host's, and "
            f"host={config.host.name} has neither convolutions nor matrix products: leave it out"
        )


def _check_task(config: Config, task: TaskData) -> None:
    """Refuse options that only text, or only images, have, and sizes that do not fit."""
    name, given = config.task.name, config.task
    if task.kind == "images":
        for key in ("context_length", "vocab_size"):
            if getattr(given, key) is not None:
                raise ValueError(f"task.{key}={getattr(given, key)} is for text; {name} has images")
        at_most("task.crop", given.crop, f"images of {name} have a side of {task.image_size}", task.image_size - 1)
        at_most("task.cutout", given.cutout, f"images of {name} have a side of {task.image_size}", task.image_size)
        return
    for key in ("crop", "flip", "cutout"):
        if getattr(given, key):
            raise ValueError(f"task.{key}={str(getattr(given, key)).lower()} is for images; {name} has text")


def _check_families(config: Config, task: TaskData) -> None:
    """Refuse host families with fewer classes for tasks without classes, with too few, or without samples of the
    rest.
    """
    few = [
        f"{mix}.{family}"
        for mix, families in config.instances.mixes().items()
        for family, weight in families.items()
        if weight and parse_faults(family).few_classes
    ]
    if not few:
        return
    if task.kind == "tokens":
        raise ValueError(f"{few[0]} is about classes of images; {config.task.name} has text (weight 0 leaves it out)")
    at_most(
        "instances.num_few_classes",
        config.instances.classes_kept(task.num_classes),
        f"classes of the task; {few[0]}=0 leaves such hosts out",
        task.num_classes,
    )
    _check_classes(config, task)


def _check_classes(config: Config, task: TaskData) -> None:
    """Refuse splits in which an instance of few classes would have no sample."""
    # Imported here, because its slow imports would delay help and errors of use.
    from esper.envs.instances import SPLITS
    from esper.experiment.build import instance_pool

    present = {name: set(split.targets.tolist()) for name, split in task.splits().items()}
    for instance in (instance for split in SPLITS for instance in instance_pool(config, task, split)):
        for name, there in present.items():
            if instance.classes is not None and there.isdisjoint(instance.classes):
                classes, holder = ", ".join(map(str, instance.classes)), f"{instance.split} instance {instance.index}"
                raise ValueError(
                    f"instances.num_few_classes={len(instance.classes)}: {name} of task {config.task.name} has no "
                    f"sample of classes {classes}, all that {holder} has: keep more classes or more samples"
                )


def _check_arrival(config: Config, task: TaskData) -> None:
    """Refuse the arrival of classes in text, of no class, and of all that an instance has samples of."""
    from esper.envs.instances import SPLITS, first_data, instance_data
    from esper.experiment.build import instance_pool

    arrival = config.instances.arrival
    if arrival.classes is None:
        return
    if task.kind == "tokens":
        raise ValueError(
            f"instances.arrival.classes={arrival.classes} is about classes of images; {config.task.name} has text"
        )
    for instance in (instance for split in SPLITS for instance in instance_pool(config, task, split)):
        first_data(task, instance, instance_data(task, instance))


def _check_fits(key: str, blueprint: str, host_family: str, places: Sequence[Place]) -> None:
    """Refuse a blueprint that fits none of the places, with the blueprint's own reason if it gives one."""
    fits = compatible(place.site for place in places).any(dim=0).tolist()
    offered = [name for name, fit in zip(blueprint_ids(), fits, strict=True) if fit]
    if blueprint not in blueprint_ids():
        known(key, blueprint, offered)
    if blueprint not in offered:
        why = ""
        for family, channels in {place.site for place in places}:
            if blueprint in BLUEPRINTS[family]:
                try:
                    build_blueprint(family, blueprint, channels)
                except ValueError as error:
                    why = f" ({error})"
        raise ValueError(
            f"{key}: {blueprint!r} does not fit this {host_family} host{why}; choose from {', '.join(offered)}"
        )
