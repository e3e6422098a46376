"""Export of a network that a training run has grown on a held-out host: ``python -m esper.export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.config.export import BEST, ExportConfig
from esper.config.learning import Twin
from esper.config.root import Config, SaveGrown
from esper.config.store import from_yaml
from esper.config.words import shell_word
from esper.envs.instances import Instance
from esper.evaluation.grown import Grown, Keeper, best, read, rebuild
from esper.evaluation.play import RUN_SEED, compare
from esper.experiment.build import Experiment, build_experiment
from esper.experiment.checkpoint import load_checkpoint, loading, restore_policy
from esper.exporting.formats import checked_formats
from esper.exporting.network import check_out, export_network, read_sheet, results_of
from esper.population.losses import weighted_sums
from esper.runtime.controller_names import LEARNED
from esper.runtime.devices import visible_devices
from esper.runtime.records import json_safe
from esper.runtime.run_folder import RunFolder
from esper.runtime.terminal import say

EXAMPLES = 64
"""Test samples on which the exported forms are compared."""

TEST_BATCH = 256

ALLOWED = 2
"""Test answers in which a network alone may differ from the same network among others, whose sums round otherwise."""

KEEP = "train with evaluation.save_grown=best to keep the network itself"


def check(config: ExportConfig) -> None:
    """Refuse forms, folders and hosts that cannot be exported, before anything starts.

    Raises:
        ValueError: names the key, the value and the choices.
    """
    checked_formats(config.formats)
    check_out(config.out)
    folder = RunFolder(Path(config.run))
    host, episode = chosen(folder, config.host)
    if _kept(folder, host, episode) is None:
        _replaying_device(folder)
        load_checkpoint(folder.last_checkpoint)


def chosen(folder: RunFolder, host: str | int) -> tuple[int, dict[str, Any]]:
    """Return the number of the host to export, and its record in ``result.json``.

    Raises:
        ValueError: the run has not finished, has no such host, or kept nothing.
    """
    episodes = _episodes(folder)
    if host == BEST:
        number = best(episodes)
        if number is None:
            raise ValueError(
                f"host=best: none of the {len(episodes)} held-out hosts of {folder.path} kept a module; "
                f"host=<0 to {len(episodes) - 1}> exports one as it is"
            )
        return number, episodes[number]
    number = int(host)
    if number >= len(episodes):
        raise ValueError(f"host={number}: {folder.path} has held-out hosts 0 to {len(episodes) - 1}, or say host=best")
    if episodes[number]["crashed"]:
        raise ValueError(f"host={number} crashed while it was trained, so there is no network: choose another")
    return number, episodes[number]


def _kept(folder: RunFolder, host: int, episode: dict[str, Any]) -> Grown | None:
    """Return the network that the run has kept of an episode, if it has."""
    grown = read(folder, host)
    return grown if grown is not None and grown.episode == episode else None


def _replaying_device(folder: RunFolder) -> str:
    """Return the value of ``devices`` under which the run's hosts grow to the same numbers: its first one, or another
    GPU of the same model.

    Raises:
        ValueError: there is none.
    """
    result = _result(folder)
    device, name = torch.device(result["device"]), result["device_name"]
    if device.type == "cpu":
        return device.type
    able = [index for index in range(torch.cuda.device_count()) if torch.cuda.get_device_name(index) == name]
    if not able:
        raise ValueError(
            f"run={folder.path}: its hosts grew on {name}, and replaying them to the same numbers needs such a device; "
            f"visible: {', '.join(visible_devices())}: export where there is one, or {KEEP}"
        )
    return str(device.index if device.index in able else able[0])


def _result(folder: RunFolder) -> dict[str, Any]:
    if not folder.config.exists():
        raise ValueError(f"run={folder.path} is no run folder (no {folder.config.name})")
    try:
        result = json.loads(folder.result.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"run={folder.path} has not finished (no {folder.result.name}): "
            f"{shell_word('resume', folder.path)} resumes it"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"run: {folder.result} cannot be read ({error})") from None
    if not isinstance(result, dict):
        raise ValueError(f"run: {folder.result} cannot be read (it holds a {type(result).__name__})")
    return result


def _episodes(folder: RunFolder) -> list[dict[str, Any]]:
    episodes: dict[str, list[dict[str, Any]]] = _result(folder).get("episodes", {})
    if LEARNED not in episodes:
        raise ValueError(
            f"run={folder.path} has no held-out hosts of {LEARNED!r}: name a training run whose evaluation.controllers "
            "has it"
        )
    return episodes[LEARNED]


def export(config: ExportConfig) -> None:
    """Export a grown network.

    Raises:
        ValueError: what was grown cannot be had again or written.
    """
    folder = RunFolder(Path(config.run))
    host, episode = chosen(folder, config.host)
    grown = _kept(folder, host, episode)
    experiment = build_experiment(_config(folder, "cpu" if grown is not None else _replaying_device(folder)))
    source = f"kept in {folder.grown.name}/{host}.pt"
    if grown is None:
        source = "replayed from the last checkpoint"
        grown = _replayed(experiment, folder, host)
    network = rebuild(experiment.host, grown.state)
    evaluation = experiment.config.evaluation
    instance = experiment.pool(evaluation.split, evaluation.num_hosts).draw(RUN_SEED, host, 0)
    accuracy = _test_accuracy(experiment, network, instance)
    _check_accuracy(experiment, host, accuracy, episode)
    kept = ", ".join(f"{slot}:{blueprint}" for slot, blueprint in episode["kept"].items()) or "nothing"
    say(f"host {host} of {folder.path} ({source}) kept {kept}; test accuracy {100 * accuracy:.2f} %")
    inputs = experiment.task.test.inputs[:EXAMPLES]
    about = {
        "title": f"Held-out host {host} of {folder.path.name}, grown and exported by Esper.",
        "run": str(folder.path),
        "host": host,
        "source": source,
        "task": experiment.config.task.name,
        "instance": asdict(instance),
        "slots": list(experiment.slot_ids),
        "modules": {
            slot: {name: value for name, value in module.items() if name != "state"}
            for slot, module in grown.state["modules"].items()
        },
        "logged": episode,
        "test_accuracy": accuracy,
    }
    export_network(
        network, experiment.task.prepare(inputs), format=config.formats, out=config.out, about=json_safe(about)
    )
    for name, entry in read_sheet(Path(config.out))["formats"].items():
        say(f"{name}: {', '.join(entry['files'])}, within {entry['difference']:.2g} of the network")
    say(f"everything is in {config.out}")


def _config(folder: RunFolder, device: str) -> Config:
    """Return the configuration of the run with the learned controller alone, on one device."""
    config = from_yaml(folder.config.read_text(encoding="utf-8"), Config)
    evaluation = replace(config.evaluation, controllers=[LEARNED], save_grown=SaveGrown.all)
    return replace(config, devices=device, evaluation=evaluation)


def _replayed(experiment: Experiment, folder: RunFolder, host: int) -> Grown:
    """Play the learned controller again on all held-out hosts, and return one.

    Raises:
        ValueError: a number differs from the logged one.
    """
    say(f"replaying {experiment.config.evaluation.num_hosts} held-out hosts")
    torch.set_num_threads(experiment.config.num_threads or torch.get_num_threads())
    policy, normaliser = experiment.policy()
    with loading(folder.last_checkpoint):
        restore_policy(load_checkpoint(folder.last_checkpoint), policy, normaliser)
    twins = None
    if experiment.config.reward.twin is not Twin.none:
        twins = experiment.twins(experiment.config.evaluation.num_hosts, lambda done, total: None)
    keeper = Keeper(SaveGrown.all)
    compare(experiment, policy, normaliser, twins, lambda name, done, total: None, learned=keeper)
    logged = _episodes(folder)
    for grown in keeper.grown:
        check_replay(folder.path, grown, logged[grown.host])
    (found,) = (grown for grown in keeper.grown if grown.host == host)
    return found


def check_replay(run: Path, grown: Grown, logged: Mapping[str, Any]) -> None:
    """Refuse a replayed host of which a number differs from the logged one; those that its run did not log are new.

    Raises:
        ValueError: names the number, with its value here and the logged one.
    """
    for name, value in grown.episode.items():
        if name in logged and logged[name] != value:
            raise ValueError(
                f"run: host {grown.host} of {run} has another {name} when it is replayed here ({value}, logged "
                f"{logged[name]}): export with the devices and versions of the run, or {KEEP}"
            )


def _test_accuracy(experiment: Experiment, network: nn.Module, instance: Instance) -> float:
    """Return the accuracy of a network on the instance's test samples, as a fraction of 1."""
    samples = experiment.loader.test([instance])
    hits = torch.zeros((), dtype=torch.float64)
    for begin in range(0, len(samples.inputs), TEST_BATCH):
        part = slice(begin, begin + TEST_BATCH)
        inputs: Tensor = samples.prepare(samples.inputs[part]).cpu()
        (logits,) = results_of(network, [inputs])
        hits += weighted_sums(logits[None], samples.targets[part].cpu().long(), samples.weights[:, part].cpu())[2, 0]
    return float(hits / samples.weights.sum(dtype=torch.float64))


def _check_accuracy(experiment: Experiment, host: int, accuracy: float, episode: dict[str, Any]) -> None:
    """Refuse a network whose test accuracy is not the logged one; one trained in mixed precision may round otherwise.

    Raises:
        ValueError: names the number, with its value here and the logged one.
    """
    answers = experiment.task.test.targets.numel()
    if experiment.config.amp.dtype is None and abs(accuracy - episode["test_accuracy"]) > ALLOWED / answers:
        raise ValueError(
            f"host {host} has a test accuracy of {accuracy:.6f} alone, but {episode['test_accuracy']:.6f} in its run"
        )
