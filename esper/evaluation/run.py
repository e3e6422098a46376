"""Trained controllers and their controls on the same held-out hosts: ``python -m esper.evaluate``.

Policies are frozen; every controller grows the same instances, so differences are taken host by host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from esper.config import summary, to_plain, to_yaml
from esper.config.checks import known
from esper.config.errors import refused
from esper.config.evaluate import EvaluateConfig
from esper.config.learning import Twin
from esper.config.root import CheckpointConfig, Config
from esper.config.wandb import TrainWandbConfig
from esper.config.words import shell_word
from esper.controllers import CONTROLLERS, TUNED, Tuning
from esper.envs.twins import TwinCache
from esper.evaluation.closing import closing_report
from esper.evaluation.play import Outcome, compare, try_own_controllers
from esper.evaluation.results import LEARNED, OF_RUNS, SAMPLED, Standing
from esper.evaluation.tuning import tune
from esper.evaluation.tuning.fingerprint import SECTIONS, experiment_sections, fingerprint
from esper.experiment.build import Laboratory, build_laboratory, compile_lines, instance_pool
from esper.experiment.checkpoint import (
    CheckpointError,
    checkpoint_path,
    config_of,
    load_checkpoint,
    restore_policy,
    usable,
)
from esper.experiment.preflight import preflight
from esper.experiment.shortage import shortages
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.devices import intra_op_threads, keep_freed_memory
from esper.runtime.files import write_atomic
from esper.runtime.preemption import StopSignals
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.run_folder import RunFolder, run_status, stop_told
from esper.runtime.terminal import say
from esper.tasks import load_task
from esper.telemetry.background import InBackground
from esper.telemetry.events import Level
from esper.telemetry.hub import Logger, TelemetryHub, optional
from esper.telemetry.wandb_mirror import mirrored
from esper.views.console import ConsoleLogger

OWN_KEYS = {
    "instances.held_out_families": "families",
    "instances.num_held_out": "num_hosts",
    "evaluation.num_hosts": "num_hosts",
    "evaluation.controllers": "controllers",
    "trainer.num_envs": "num_hosts",
}
"""Keys of a run that an evaluation gives, and what they are called there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run's controller.

    Attributes:
        path: its checkpoint.
        config: of the run.
        env_epochs: environment epochs that training took.
        record: the checkpoint.
    """

    path: Path
    config: Config
    env_epochs: int
    record: dict[str, Any]


def read_trained(config: EvaluateConfig) -> list[Trained]:
    """Read every checkpoint.

    Raises:
        CheckpointError: one cannot be used, or they are of different experiments.
    """
    found = []
    for name in config.checkpoints:
        path = checkpoint_path(name)
        record = load_checkpoint(path)
        own = config_of(record, path)
        assert own.trainer.num_steps is not None, "nulls are resolved on loading"
        env_epochs = record["iteration"] * own.trainer.num_envs * own.trainer.num_steps
        found.append(Trained(path=path, config=own, env_epochs=env_epochs, record=record))
    for other in found[1:]:
        sections, first = experiment_sections(other.config), experiment_sections(found[0].config)
        for section in SECTIONS:
            if sections[section] != first[section]:
                raise CheckpointError(
                    f"{other.path} and {found[0].path} differ in {section}: one evaluation takes run seeds of one "
                    "configuration; evaluate them apart"
                )
    return found


def experiment(config: EvaluateConfig, trained: Sequence[Trained]) -> Config:
    """The configuration of the runs, with the devices, hosts and controllers of the evaluation."""
    with _own_words(trained):
        return _experiment(config, trained[0].config)


def _experiment(config: EvaluateConfig, own: Config) -> Config:
    instances = replace(own.instances, num_held_out=config.num_hosts)
    if config.families:
        instances = replace(instances, held_out_families=config.families)
    return replace(
        own,
        seed=config.seed,
        devices=config.devices,
        num_threads=config.num_threads,
        instances=instances,
        evaluation=replace(own.evaluation, num_hosts=config.num_hosts, controllers=[LEARNED]),
        # Nothing learns, and evaluation environments stand in for those of training wherever a size depends on them.
        trainer=replace(own.trainer, num_envs=config.num_hosts),
        ppo=replace(own.ppo, num_minibatches=1),
        checkpoint=CheckpointConfig(),  # what the run itself started from may be gone
        wandb=TrainWandbConfig(**asdict(config.wandb)),
    )


@contextmanager
def _own_words(trained: Sequence[Trained]) -> Iterator[None]:
    """Say in an evaluation's keys what is refused in a run's; what only the run has is said to be the run's."""
    try:
        yield
    except ValueError as error:
        message, given = re.subn("|".join(map(re.escape, OWN_KEYS)), lambda match: OWN_KEYS[match[0]], str(error))
        if given or message.startswith(tuple(field.name for field in fields(EvaluateConfig))):
            raise ValueError(message) from error
        raise ValueError(f"checkpoint: the run of {trained[0].path} cannot be played here: {message}") from error


def check(config: EvaluateConfig) -> None:
    """Refuse checkpoints, names, families and devices that cannot be used, before anything starts.

    Raises:
        ValueError: names the key, the value and the choices.
    """
    for name in config.controllers:
        known("controllers", name, CONTROLLERS)
    if "static_final" in config.controllers and LEARNED not in config.controllers:
        raise ValueError(f"controllers: 'static_final' trains what {LEARNED!r} ended with: name both")
    trained = read_trained(config)
    own = experiment(config, trained)
    with _own_words(trained):
        preflight(own)
    _check_budget(config, trained, read_tunings(config, own))
    task = load_task(own.task.name, **own.task.options())
    trained_on, held_out = (
        {instance.family for instance in instance_pool(own, task, split)} for split in ("train", "held_out")
    )
    unseen = sorted(held_out - trained_on)
    if unseen and "schedule_per_family" in config.controllers:
        raise ValueError(
            f"controllers: 'schedule_per_family' has no plan for hosts of family {', '.join(unseen)}, which "
            "training instances do not have: leave it out"
        )


def evaluate(config: EvaluateConfig, run_dir: Path, ranks: Ranks = ALONE) -> None:
    """Play every controller on the held-out hosts, and leave tables, plots and intervals in ``run_dir``.

    Args:
        config: of the evaluation, the same on every rank.
        run_dir: where the first rank writes.
        ranks: this process among those of the evaluation, each with its share of the hosts.

    Raises:
        UsageError: a checkpoint, a tuning or a name cannot be used.
        NeverGrewError: a control that is there to grow did not.
        RunError: the disk or the memory is full, or a user's own code fails; the message says what to change.
        Preempted: a signal asked the evaluation to end.
        PeerLost: another rank has ended.
    """
    began, folder = perf_counter(), RunFolder(run_dir)
    torch.set_num_threads(intra_op_threads(config.num_threads, ranks.local_size))
    keep_freed_memory()
    limits = partial(shortages, config, folder.path)
    unused = folder.left_if_used() if ranks.is_first else nullcontext()
    with StopSignals() as signals, limits(), unused, ExitStack() as mirrors, ExitStack() as own:
        with refused(EvaluateConfig):
            trained = read_trained(config)
            laboratory = build_laboratory(experiment(config, trained), ranks)
            try_own_controllers(laboratory, config.controllers)
            policies = [_restore(laboratory, run) for run in trained]
            tuning = read_tunings(config, laboratory.config)
        with signals.deferred():  # a folder that is claimed has a status
            if ranks.is_first:
                RunFolder.create(run_dir, to_yaml(config), checkpoints=False)
            own.enter_context(run_status(folder, ranks.rank))
        own.enter_context(stop_told(folder, partial(_say_stopped, config, folder, ranks)))
        own.enter_context(limits())
        if ranks.is_first and config.console != "off":
            told = compile_lines(laboratory.config, laboratory.device, learns=False)
            say(summary(config), summary(laboratory.config), *told, f"run folder {folder.path}")
        mirrors.enter_context(_mirror(config, folder, ranks))
        with TelemetryHub(_watchers(config, ranks), Level.off) as hub:
            twins = _twins(laboratory, hub)
            wanted = _untuned(config, tuning)
            if wanted:
                found = tune(
                    laboratory,
                    twins,
                    budget=_budget(config, trained),
                    seed=config.seed,
                    controls=wanted,
                    progress=lambda name, done, total: hub.stage(f"tuning {name}", done, total),
                )
                tuning = found if tuning is None else tuning.merged(found)
            if tuning is not None and ranks.is_first:
                write_atomic(folder.path / "tuning.json", json.dumps(tuning.to_record(), indent=2) + "\n")
            standings = _play(config, laboratory, policies, twins, tuning, hub)
        if ranks.is_first:
            provenance = {
                "checkpoints": [
                    {"path": str(run.path), "seed": run.config.seed, "env_epochs": run.env_epochs} for run in trained
                ],
                "tuning": None if tuning is None else tuning.to_record(),
            }
            closing_report(config, laboratory, folder, standings, provenance, perf_counter() - began)


def _say_stopped(config: EvaluateConfig, folder: RunFolder, ranks: Ranks, name: str) -> None:
    """Say what is left of an evaluation that a signal of this name has stopped."""
    if ranks.is_first and config.console != "off":
        tuned = folder.path / "tuning.json"
        kept = f"; {shell_word('tuning', tuned)} keeps what was tuned" if tuned.exists() else ""
        say(f"{name}: stopped; the same command evaluates anew{kept}")


def _watchers(config: EvaluateConfig, ranks: Ranks) -> list[Logger]:
    """Loggers that show the evaluation to somebody."""
    if not ranks.is_first:
        return []
    return optional("console", lambda: InBackground(ConsoleLogger(config.console, 0)))


def _mirror(config: EvaluateConfig, folder: RunFolder, ranks: Ranks) -> AbstractContextManager[list[Logger]]:
    """The evaluation in W&B, if it is wanted there: what it leaves at the end, for there are no iterations."""
    if not ranks.is_first:
        return nullcontext([])
    return mirrored(folder, name=config.name, job_type="evaluate", config=to_plain(config), **asdict(config.wandb))


def _twins(laboratory: Laboratory, hub: TelemetryHub) -> TwinCache | None:
    config = laboratory.config
    if config.reward.twin is Twin.none:
        return None
    share = laboratory.share(config.evaluation.num_hosts)
    return laboratory.twins(len(share), lambda done, total: hub.stage("never-grown twins", done, total))


def _restore(laboratory: Laboratory, run: Trained) -> tuple[GrowthPolicy, Normaliser]:
    policy, normaliser = replace(laboratory, config=run.config).policy()  # of the run's own widths
    with usable(run.path):
        restore_policy(run.record, policy, normaliser)
    return policy, normaliser


def read_tunings(config: EvaluateConfig, own: Config) -> Tuning | None:
    """The tunings of earlier evaluations together, ``None`` if none is named.

    Raises:
        ValueError: there is none, it cannot be read, or it was found for another configuration or within another budget
            than the first.
    """
    merged: Tuning | None = None
    for name in config.tunings:
        found = _read_tuning(Path(name), own)
        try:
            merged = found if merged is None else merged.merged(found)
        except ValueError as error:
            raise ValueError(f"tuning: {name}: {error}") from error
    return merged


def _budget(config: EvaluateConfig, trained: Sequence[Trained]) -> int:
    return config.tuning_epochs or trained[0].env_epochs


def _untuned(config: EvaluateConfig, tuning: Tuning | None) -> list[str]:
    """Controls that are still to be tuned."""
    return [name for name in TUNED if name in config.controllers and (tuning is None or name not in tuning.tuned)]


def _check_budget(config: EvaluateConfig, trained: Sequence[Trained], tuning: Tuning | None) -> None:
    """Refuse to tune controls within less than an episode, or another budget than those had that are tuned already."""
    missing, budget = _untuned(config, tuning), _budget(config, trained)
    episode = trained[0].config.env.num_epochs
    if missing and budget < episode:
        raise ValueError(
            f"tuning_epochs must be at least {episode}, one episode of these hosts, got {budget}"
            f"{' (null: what training spent)' if config.tuning_epochs is None else ''}; or leave "
            f"{', '.join(missing)} out of controllers"
        )
    if tuning is not None and missing and budget != tuning.budget:
        raise ValueError(
            f"tuning: {', '.join(missing)} would be tuned within {budget} environment epochs, the controls there had "
            f"{tuning.budget}: set tuning_epochs={tuning.budget}"
        )


def _read_tuning(path: Path, config: Config) -> Tuning:
    try:
        tuning = Tuning.from_record(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"tuning: cannot read {path} ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"tuning: {path}: {error}") from error
    if tuning.experiment != fingerprint(config):
        raise ValueError(
            f"tuning: {path} was found on training instances of another configuration: leave it out, and controls are "
            "tuned anew"
        )
    return tuning


def _play(
    config: EvaluateConfig,
    laboratory: Laboratory,
    policies: Sequence[tuple[GrowthPolicy, Normaliser]],
    twins: TwinCache | None,
    tuning: Tuning | None,
    hub: TelemetryHub,
) -> list[Standing]:
    """Every controller in turn, in the order of the configuration; nothing on later ranks."""
    own = [name for name in OF_RUNS if name in config.controllers]
    found: dict[str, list[Outcome]] = {}

    def play(names: Sequence[str], number: int, label: str | None = None) -> None:
        policy, normaliser = policies[number]
        evaluation = replace(laboratory.config.evaluation, controllers=list(names), deterministic=label != SAMPLED)
        run = f", run {number + 1} of {len(policies)}" if names is own and len(policies) > 1 else ""
        for outcome in compare(
            replace(laboratory, config=replace(laboratory.config, evaluation=evaluation)),
            policy,
            normaliser,
            twins,
            lambda name, done, total: hub.stage(f"{label or name}{run}", done, total),
            tuning,
        ):
            found.setdefault(label or outcome.name, []).append(outcome)

    for name in config.controllers:
        if name not in own:
            play([name], 0)
    for number in range(len(policies)):
        if own:
            play(own, number)
        if LEARNED in own and config.sampled:
            play([LEARNED], number, SAMPLED)
    order = [name for name in config.controllers for name in ((name, SAMPLED) if name == LEARNED else (name,))]
    return [Standing(name=name, outcomes=tuple(found[name])) for name in order if name in found]
