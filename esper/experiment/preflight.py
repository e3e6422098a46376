"""What only the registries, the host and the machine can tell about a configuration, asked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from esper.blueprints import BLUEPRINTS, blueprint_ids, build_blueprint, compatible
from esper.config.checks import at_most, known
from esper.config.evaluate import EvaluateConfig
from esper.config.root import Config
from esper.config.wandb import WandbConfig, WandbMode
from esper.growth.slots import select_slots
from esper.hosts import HOSTS, Place, SegmentedHost, parse_faults
from esper.runtime.contracts import check_forward
from esper.runtime.devices import resolve_devices
from esper.runtime.precision import check_amp
from esper.runtime.ranks import outside_placement
from esper.tasks import TASKS, TaskData, load_task


def preflight(config: Config) -> None:
    """Refuse names that no registry has, slots that the host does not offer, and devices that are not there or that
    do not have the precision.

    Raises:
        ValueError: names the key, the value and the choices.
    """
    devices = visible_to_ranks(config)
    # Imported here: they build on much that configuration itself must not need.
    from esper.controllers import AFTER_TRAINING, CONTROLLERS
    from esper.envs.rewards import REWARDS, reward_family
    from esper.experiment.checkpoint import checkpoint_path, load_checkpoint
    from esper.experiment.transfer import check_source
    from esper.population import PROBE_NAMES

    known("task.name", config.task.name, TASKS)
    known("host.name", config.host.name, HOSTS)
    known("reward.family", config.reward.family, REWARDS)
    reward_family(config.reward.family)
    for probe in config.observation.slot_probes:
        known("observation.slot_probes", probe, PROBE_NAMES)
    if config.observation.num_blueprints != len(blueprint_ids()):
        raise ValueError(
            f"observation.num_blueprints must be {len(blueprint_ids())} ({', '.join(blueprint_ids())}), got "
            f"{config.observation.num_blueprints}: leave it out, or name in plugins what registers the others"
        )
    for controller in config.evaluation.controllers:
        known("evaluation.controllers", controller, CONTROLLERS)
        if controller in AFTER_TRAINING:
            choices = [name for name in CONTROLLERS if name not in AFTER_TRAINING]
            raise ValueError(
                f"evaluation.controllers: {controller!r} needs {AFTER_TRAINING[controller]}, so it belongs to "
                f"python -m esper.evaluate; choose from {', '.join(choices)}"
            )
    for device in dict.fromkeys(devices):
        check_amp(config.amp.name, device)
    check_mirror(config.wandb)
    _check_host(config)
    if config.checkpoint.path is not None:
        check_source(load_checkpoint(checkpoint_path(config.checkpoint.path)), config)


def visible_to_ranks(config: Config | EvaluateConfig) -> list[torch.device]:
    """The devices of this machine's ranks; asked first, since the answer needs nothing else.

    Raises:
        ValueError: a device is not there, or there are not as many as ranks, or less work than ranks.
    """
    placement = outside_placement()
    devices = resolve_devices(config.devices, placement.local_size if placement else None)
    if isinstance(config, Config):
        config.check_shares(placement.size if placement else len(devices))
    return devices


def check_mirror(wandb: WandbConfig) -> None:
    """Refuse to mirror online where nobody is logged in.

    Raises:
        ValueError: says how to log in.
    """
    if wandb.mode is WandbMode.online:
        from esper.telemetry.wandb_mirror import check_online

        check_online()


def _check_host(config: Config) -> None:
    # Imported here: it builds on much that help and errors of use must not wait for.
    from esper.experiment.build import build_task_host, check_growth

    task = load_task(config.task.name, **config.task.options())
    _check_task(config, task)
    built = build_task_host(config, task)
    _check_first_pass(config, task, built)
    _check_families(config, task)
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
    """Refuse data that no host of this kind gets a finite number from: its largest image is the one to overflow."""
    inputs = task.train.inputs
    largest = int(inputs.flatten(1).float().abs().amax(dim=1).argmax())
    x = task.prepare(inputs[largest : largest + 1]).cpu()
    check_forward(f"host={config.host.name} on training sample {largest} of task {task.name}", host, x)


def _check_task(config: Config, task: TaskData) -> None:
    """Refuse what only text, or only images, can have, and sizes that do not fit."""
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
    """Refuse host families that lack classes where there are none, or too few, or no samples of those that are left."""
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
    # Imported here: it builds on much that help and errors of use must not wait for.
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


def _check_fits(key: str, blueprint: str, host_family: str, places: Sequence[Place]) -> None:
    """Refuse a blueprint that fits none of the places, and say why where it says so itself."""
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
