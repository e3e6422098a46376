"""What only the registries, the host and the machine can tell about a configuration, asked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable

from esper.blueprints import blueprint_ids, compatible
from esper.config.checks import at_most, known
from esper.config.root import Config
from esper.config.wandb import WandbConfig, WandbMode
from esper.devices import resolve_devices
from esper.hosts import HOSTS
from esper.precision import check_amp
from esper.ranks import outside_placement
from esper.slots import select_slots
from esper.tasks import TASKS, load_task


def preflight(config: Config) -> None:
    """Refuse names that no registry has, slots that the host does not offer, and devices that are not there or that
    do not have the precision.

    Raises:
        ValueError: names the key, the value and the choices.
    """
    # Imported here: they build on much that configuration itself must not need.
    from esper.checkpoint import checkpoint_path, load_checkpoint
    from esper.controllers import AFTER_TRAINING, CONTROLLERS
    from esper.envs.rewards import REWARDS
    from esper.population import PROBE_NAMES
    from esper.transfer import check_source

    known("task.name", config.task.name, TASKS)
    known("host.name", config.host.name, HOSTS)
    known("reward.family", config.reward.family, REWARDS)
    for probe in config.observation.slot_probes:
        known("observation.slot_probes", probe, PROBE_NAMES)
    for controller in config.evaluation.controllers:
        known("evaluation.controllers", controller, CONTROLLERS)
        if controller in AFTER_TRAINING:
            choices = [name for name in CONTROLLERS if name not in AFTER_TRAINING]
            raise ValueError(
                f"evaluation.controllers: {controller!r} needs {AFTER_TRAINING[controller]}, so it belongs to "
                f"python -m esper.evaluate; choose from {', '.join(choices)}"
            )
    placement = outside_placement()
    devices = resolve_devices(config.devices, placement.local_size if placement else None)
    config.check_shares(placement.size if placement else len(devices))
    for device in dict.fromkeys(devices):
        check_amp(config.amp.name, device)
    check_mirror(config.wandb)
    _check_host(config)
    if config.checkpoint.path is not None:
        check_source(load_checkpoint(checkpoint_path(config.checkpoint.path)), config)


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
    from esper.build import build_task_host

    task = load_task(config.task.name)
    at_most("instances.num_few_classes", config.instances.num_few_classes, "classes of the task", task.num_classes)
    built = build_task_host(config, task)
    channels = {place.slot_id: place.channels for place in built.places}
    try:
        chosen = select_slots(tuple(channels), config.slots.num_slots, config.slots.ids)
    except ValueError as error:
        raise ValueError(f"slots.{error}" if str(error).startswith("num_slots") else f"slots.ids: {error}") from error
    fits = compatible(built.family, [channels[slot_id] for slot_id in chosen]).any(dim=0).tolist()
    offered = [name for name, fit in zip(blueprint_ids(), fits, strict=True) if fit]
    for blueprint in config.slots.blueprints or ():
        _check_fits("slots.blueprints", blueprint, built.family, offered)
    for name, step in config.evaluation.schedule.items():
        _check_fits(f"evaluation.schedule.{name}.blueprint", step.blueprint, built.family, offered)


def _check_fits(key: str, blueprint: str, family: str, offered: Iterable[str]) -> None:
    names = list(offered)
    if blueprint not in blueprint_ids():
        known(key, blueprint, names)
    if blueprint not in names:
        raise ValueError(f"{key}: {blueprint!r} does not fit this {family} host; choose from {', '.join(names)}")
