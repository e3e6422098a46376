"""Networks that the learned controller has grown on held-out hosts: taken, kept in a run folder, and rebuilt."""

from __future__ import annotations

import copy
import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esper.blueprints import build_blueprint
from esper.blueprints.residual import settle
from esper.config.root import SaveGrown
from esper.envs.growth import GrowthEnv
from esper.evaluation.play import Outcome
from esper.evaluation.results import logged_record
from esper.growth import Stage
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.hosts import SegmentedHost
from esper.runtime.files import replacing
from esper.runtime.ranks import Ranks
from esper.runtime.records import json_safe
from esper.runtime.run_folder import RunFolder
from esper.runtime.state import State, damage, on_cpu, parts

FORMAT = "esper-grown"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A held-out host at the end of its episode.

    Attributes:
        host: number of the host among all held-out hosts.
        episode: record of its episode, as in ``result.json``.
        state: host and FOSSILIZED modules, tensors on the CPU and plain types only.
    """

    host: int
    episode: dict[str, Any]
    state: State


def take(env: GrowthEnv, environment: int, episode: Mapping[str, Any]) -> Grown:
    """Copy the network of an environment whose episode has just ended without a crash."""
    kept = env.state.alpha * (env.state.stage == Stage.FOSSILIZED)
    alpha = kept[environment].tolist()
    network = env.population.grown(environment, alpha)
    modules = {}
    for slot, slot_id in enumerate(env.slot_ids):
        if alpha[slot]:
            module = network.attached[slot_id]
            assert isinstance(module, BlendedModule), "the population attaches no others"
            modules[slot_id] = {
                "blueprint": episode["kept"][slot_id],
                "algorithm": module.algorithm.name,
                "alpha": alpha[slot],
                "state": dict(module.state_dict()),
            }
    state = on_cpu({"segments": dict(network.segments.state_dict()), "modules": modules})
    return Grown(host=env.first + environment, episode=dict(episode), state=state)


def rebuild(prototype: SegmentedHost, state: State) -> nn.Module:
    """Return the network of a state as a plain module on the CPU, in evaluation mode.

    Args:
        prototype: the run's host.
        state: the ``state`` of a :class:`Grown`.
    """
    host = copy.deepcopy(prototype).cpu()
    host.segments.load_state_dict(state["segments"])
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for position, segment in enumerate(host.segments):
        children = dict(segment.named_children()) if type(segment) is nn.Sequential else {}
        own_names = children and not any(name in layers or name.isdigit() for name in children)
        layers.update(children if own_names else {f"part{position}": segment})
        place = host.places[position] if position < len(host.places) else None
        if place is not None and place.slot_id in state["modules"]:
            found = state["modules"][place.slot_id]
            algorithm = BlendAlgorithm[found["algorithm"]]
            gate = Gate(place.channels, place.layout) if algorithm is BlendAlgorithm.GATE else None
            body = build_blueprint(place.family, found["blueprint"], place.channels)
            module = BlendedModule(body, algorithm, gate, found["alpha"])
            module.load_state_dict(found["state"])
            layers[place.slot_id] = settle(module)
    return nn.Sequential(layers).eval()


def best(episodes: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the host with the highest validation accuracy; of equals the smallest, then the first.

    Only hosts that have kept a module and not crashed count; ``None`` if there is none.
    """
    keeping = [index for index, record in enumerate(episodes) if record["num_fossilized"] and not record["crashed"]]
    return min(
        keeping,
        key=lambda index: (-episodes[index]["val_accuracy"], episodes[index]["added_parameters"]),
        default=None,
    )


@dataclass(slots=True)
class Keeper:
    """Callable that copies the networks which the learned controller has grown, for saving.

    Attributes:
        which: hosts to keep: the best one with a kept module, or all that have not crashed.
        grown: networks of this rank.
    """

    which: SaveGrown
    grown: list[Grown] = field(default_factory=list)

    def __call__(self, env: GrowthEnv, outcome: Outcome) -> None:
        """Copy the chosen networks of this rank at the end of their episodes."""
        records = [json_safe(logged_record(episode)) for episode in outcome.episodes]
        chosen = [number for number, record in enumerate(records) if not record["crashed"]]
        if self.which is SaveGrown.best:
            chosen = [number for number in [best(records)] if number is not None]
        self.grown = [take(env, number, records[number]) for number in chosen]

    def save(self, folder: RunFolder, ranks: Ranks) -> list[Path]:
        """Write the networks of all ranks on the first rank, replacing earlier ones; return their files."""
        grown = [one for part in ranks.gather(self.grown) for one in part]
        if ranks.is_first:
            shutil.rmtree(folder.grown, ignore_errors=True)
        if self.which is SaveGrown.best and grown:
            number = best([one.episode for one in grown])
            assert number is not None, "each rank has taken one that kept something"
            grown = [grown[number]]
        return [_write(folder, one) for one in grown]


def _write(folder: RunFolder, grown: Grown) -> Path:
    path = folder.grown / f"{grown.host}.pt"
    path.parent.mkdir(exist_ok=True)
    record = {"format": FORMAT, "version": VERSION, "host": grown.host, "episode": grown.episode, "state": grown.state}
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(record | {"parts": parts(record)}, file)
        file.flush()
        os.fsync(file.fileno())
    return path


def read(folder: RunFolder, host: int) -> Grown | None:
    """Read the network that a run has saved for a host; return ``None`` if it has saved none.

    Raises:
        ValueError: the file is damaged, or of another version.
    """
    path = folder.grown / f"{host}.pt"
    if not path.exists():
        return None
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a truncated or foreign file
        raise ValueError(f"{path} is truncated or not a grown network: remove it, and its host is replayed") from error
    wanted = record.pop("parts", None) if isinstance(record, dict) else None
    if not isinstance(wanted, dict) or record.get("format") != FORMAT or damage(wanted, record) is not None:
        raise ValueError(f"{path} is damaged or not a grown network: remove it, and its host is replayed")
    if record["version"] != VERSION:
        raise ValueError(f"{path} has version {record['version']}, this Esper reads {VERSION}: use the one of its run")
    return Grown(host=record["host"], episode=record["episode"], state=record["state"])
