"""Evaluation of trained controllers and their controls on the same held-out hosts: ``python -m esper.evaluate``.

Policies are frozen; every controller grows the same instances, so differences are taken host by host.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from esper.config import to_plain, to_yaml
from esper.config.errors import refused
from esper.config.evaluate import EvaluateConfig
from esper.config.identity import EXPERIMENT, experiment_sections, fingerprint
from esper.config.learning import ImitationConfig, Twin
from esper.config.plugins import activate
from esper.config.root import CheckpointConfig, Config, EvaluationSplit
from esper.config.wandb import TrainWandbConfig
from esper.config.words import shell_word
from esper.controllers import CONTROLLERS, Tuning, tunables
from esper.envs.twins import TwinCache
from esper.evaluation.closing import evaluation_report
from esper.evaluation.play import Outcome, compare, try_own_controllers
from esper.evaluation.results import ControllerResult
from esper.evaluation.tuning import tune
from esper.experiment.build import Experiment, build_experiment, compile_lines, instance_pool
from esper.experiment.checkpoint import CheckpointError, config_of, load_checkpoint, loading, restore_policy
from esper.experiment.preflight import preflight
from esper.experiment.shipped import controller_path, shipped_controllers
from esper.experiment.shortage import shortages
from esper.policy import GrowthPolicy, Normaliser
from esper.runtime.controller_names import LEARNED, OF_RUNS, SAMPLED, SCHEDULE_PER_FAMILY, STATIC_FINAL
from esper.runtime.devices import intra_op_threads, keep_freed_memory, thread_lines
from esper.runtime.files import write_atomic
from esper.runtime.preemption import StopSignals
from esper.runtime.ranks import ALONE, Ranks
from esper.runtime.run_folder import RunFolder, run_status, stop_told
from esper.runtime.terminal import say
from esper.runtime.waiting import waited
from esper.tasks import load_task
from esper.telemetry.background import InBackground
from esper.telemetry.events import Level
from esper.telemetry.hub import Logger, TelemetryHub, optional
from esper.telemetry.wandb_mirror import mirrored
from esper.views.console import ConsoleLogger

MAX_FAMILIES = 3
"""Families that a message names."""

OWN_KEYS = {
    "instances.held_out_families": "families",
    "instances.num_held_out": "num_hosts",
    "instances.num_validation": "num_hosts",
    "evaluation.num_hosts": "num_hosts",
    "evaluation.controllers": "controllers",
    "trainer.num_envs": "num_hosts",
}
"""Keys of a run that an evaluation sets, with their names there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained controller, read from a checkpoint of its run.

    Attributes:
        path: path of the checkpoint.
        config: configuration of the run.
        env_epochs: environment epochs of training.
        record: content of the checkpoint.
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
        path = controller_path(name)
        if path == Path(name) and len(path.parts) == 1 and not os.path.exists(path):
            told = ", ".join(shipped_controllers())
            raise CheckpointError(f"no checkpoint at {name}, nor a shipped controller of that name; there are {told}")
        record = load_checkpoint(path)
        own = config_of(record, path)
        assert own.trainer.num_steps is not None, "nulls are resolved on loading"
        env_epochs = record["iteration"] * own.trainer.num_envs * own.trainer.num_steps
        found.append(Trained(path=path, config=own, env_epochs=env_epochs, record=record))
    for other in found[1:]:
        sections, first = experiment_sections(to_plain(other.config)), experiment_sections(to_plain(found[0].config))
        for section in EXPERIMENT:
            if sections[section] != first[section]:
                raise CheckpointError(
                    f"{other.path} and {found[0].path} differ in {section}: one evaluation takes run seeds of one "
                    "configuration; evaluate them apart"
                )
    # Reading a run's configuration has activated its plugins.
    activate(list(dict.fromkeys([*found[0].config.plugins, *config.plugins])))
    return found


def experiment_config(config: EvaluateConfig, trained: Sequence[Trained]) -> Config:
    """Return the configuration of the runs, with the devices, hosts and controllers of the evaluation."""
    with _own_words(trained):
        return _experiment_config(config, trained[0].config)


def _experiment_config(config: EvaluateConfig, own: Config) -> Config:
    # Of training there are no more hosts than the run had.
    sizes: dict[str, Any] = {} if config.split is EvaluationSplit.train else {f"num_{config.split}": config.num_hosts}
    instances = replace(own.instances, **sizes)
    if config.families:
        instances = replace(instances, held_out_families=config.families)
    return replace(
        own,
        seed=config.seed,
        devices=config.devices,
        num_threads=config.num_threads,
        instances=instances,
        evaluation=replace(
            own.evaluation,
            num_hosts=config.num_hosts,
            split=config.split,
            controllers=[LEARNED],
            greedy=config.greedy or own.evaluation.greedy,
        ),
        # Nothing learns; sizes follow from the evaluation environments instead of those of training.
        trainer=replace(own.trainer, num_envs=config.num_hosts),
        ppo=replace(own.ppo, num_minibatches=1),
        imitation=ImitationConfig(),
        checkpoint=CheckpointConfig(),  # the run's own starting checkpoint may be gone
        telemetry=replace(own.telemetry, loggers=[]),  # there are no iterations to log
        wandb=TrainWandbConfig(**asdict(config.wandb)),
    )


@contextmanager
def _own_words(trained: Sequence[Trained]) -> Iterator[None]:
    """Translate errors about a run's keys to the evaluation's keys; mark other keys as the run's."""
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
        ValueError: a value is refused; the message names the key, the value and the choices.
    """
    if STATIC_FINAL in config.controllers and LEARNED not in config.controllers:
        raise ValueError(f"controllers: {STATIC_FINAL!r} trains what {LEARNED!r} ended with: name both")
    trained = read_trained(config)
    for name in config.controllers:
        CONTROLLERS.find(name, "controllers")
    own = experiment_config(config, trained)
    with _own_words(trained):
        preflight(own)
    _check_budget(config, trained, read_tunings(config, own))
    task = load_task(own.task.name, **own.task.options())
    trained_on, played = (
        {instance.family for instance in instance_pool(own, task, split)} for split in ("train", config.split)
    )
    unseen = sorted(played - trained_on)
    if unseen and SCHEDULE_PER_FAMILY in config.controllers:
        more = f" and {len(unseen) - MAX_FAMILIES} more" if len(unseen) > MAX_FAMILIES else ""
        others = ",".join(name for name in config.controllers if name != SCHEDULE_PER_FAMILY)
        remedy = f"controllers=[{others}] leaves it out" if others else "leave it out"
        raise ValueError(
            f"controllers: {SCHEDULE_PER_FAMILY!r} has no plan for hosts of family "
            f"{', '.join(unseen[:MAX_FAMILIES])}{more}, which training instances do not have: {remedy}"
        )


def evaluate(config: EvaluateConfig, run_dir: Path, ranks: Ranks = ALONE) -> None:
    """Play every controller on the held-out hosts, and write tables, plots and intervals to ``run_dir``.

    Args:
        config: configuration of the evaluation, the same on every rank.
        run_dir: folder of the evaluation, written by the first rank.
        ranks: the ranks of the evaluation, each with its share of the hosts.

    Raises:
        UsageError: a checkpoint, a tuning or a name cannot be used.
        NeverGrewError: a control that should grow did not.
        RunError: the disk or the memory is full, or a user's own code fails; the message names the remedy.
        Preempted: a signal asked the evaluation to stop.
        PeerLost: another rank has ended.
    """
    began, folder = perf_counter() - waited(), RunFolder(run_dir)
    torch.set_num_threads(intra_op_threads(config.num_threads, ranks.local_size))
    keep_freed_memory()
    limits = partial(shortages, config, folder.path)
    unused = folder.left_if_used() if ranks.is_first else nullcontext()
    with StopSignals() as signals, limits(), unused, ExitStack() as mirrors, ExitStack() as own:
        with refused(EvaluateConfig):
            trained = read_trained(config)
            experiment = build_experiment(experiment_config(config, trained), ranks)
            try_own_controllers(experiment, config.controllers)
            policies = [_restore(experiment, run) for run in trained]
            tuning = read_tunings(config, experiment.config)
        with signals.deferred():  # a claimed folder has a status
            if ranks.is_first:
                RunFolder.create(run_dir, to_yaml(config), checkpoints=False)
            own.enter_context(run_status(folder, ranks.rank))
        own.enter_context(stop_told(folder, partial(_say_stopped, config, folder, ranks)))
        own.enter_context(limits())
        if ranks.is_first and config.console != "off":
            told = thread_lines(config.num_threads, ranks.local_size)
            told += compile_lines(experiment.config, experiment.device, learns=False)
            say(*told, f"run folder {folder.path}, with the whole configuration in {folder.config.name}")
        mirrors.enter_context(_mirror(config, folder, ranks))
        with TelemetryHub(_watchers(config, ranks), Level.off) as hub:
            twins = _twins(experiment, hub)
            wanted = _untuned(config, tuning)
            if wanted:
                found = tune(
                    experiment,
                    twins,
                    budget=_budget(config, trained),
                    seed=config.seed,
                    controls=wanted,
                    progress=lambda name, done, total: hub.stage(f"tuning {name}", done, total),
                )
                tuning = found if tuning is None else tuning.merged(found)
            if tuning is not None and ranks.is_first:
                write_atomic(folder.path / "tuning.json", json.dumps(tuning.to_record(), indent=2) + "\n")
            results = _play(config, experiment, policies, twins, tuning, hub)
        if ranks.is_first:
            provenance = {
                "checkpoints": [
                    {"path": str(run.path), "seed": run.config.seed, "env_epochs": run.env_epochs} for run in trained
                ],
                "tuning": None if tuning is None else tuning.to_record(),
            }
            evaluation_report(config, experiment, folder, results, provenance, lambda: perf_counter() - began)


def _say_stopped(config: EvaluateConfig, folder: RunFolder, ranks: Ranks, name: str) -> None:
    """Print what remains of an evaluation that a signal with this name has stopped."""
    if ranks.is_first and config.console != "off":
        tuned = folder.path / "tuning.json"
        kept = f"; {shell_word('tuning', tuned)} keeps what was tuned" if tuned.exists() else ""
        say(f"{name}: stopped; the same command repeats the evaluation{kept}")


def _watchers(config: EvaluateConfig, ranks: Ranks) -> list[Logger]:
    """Return the loggers that display the evaluation."""
    if not ranks.is_first:
        return []
    return optional("console", lambda: InBackground(ConsoleLogger(config.console, 0)))


def _mirror(config: EvaluateConfig, folder: RunFolder, ranks: Ranks) -> AbstractContextManager[list[Logger]]:
    """Mirror the evaluation to W&B if configured; only its final results, since there are no iterations."""
    if not ranks.is_first:
        return nullcontext([])
    return mirrored(
        folder,
        name=config.name,
        job_type="evaluate",
        config=to_plain(config),
        tell=say if config.console != "off" else lambda _: None,
        **asdict(config.wandb),
    )


def _twins(experiment: Experiment, hub: TelemetryHub) -> TwinCache | None:
    config = experiment.config
    if config.reward.twin is Twin.none:
        return None
    share = experiment.share(config.evaluation.num_hosts)
    return experiment.twins(len(share), lambda done, total: hub.stage("never-grown twins", done, total))


def _restore(experiment: Experiment, run: Trained) -> tuple[GrowthPolicy, Normaliser]:
    policy, normaliser = replace(experiment, config=run.config).policy()  # of the run's own widths
    with loading(run.path):
        restore_policy(run.record, policy, normaliser)
    return policy, normaliser


def read_tunings(config: EvaluateConfig, own: Config) -> Tuning | None:
    """Merge the tunings of earlier evaluations, ``None`` if none is named.

    Raises:
        ValueError: a file is missing, cannot be read, or belongs to another configuration or budget than the first.
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
    """List the controls that still need tuning."""
    return [name for name in tunables() if name in config.controllers and (tuning is None or name not in tuning.found)]


def _check_budget(config: EvaluateConfig, trained: Sequence[Trained], tuning: Tuning | None) -> None:
    """Refuse a tuning budget below one episode, or one that differs from that of controls tuned earlier."""
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
    if tuning.experiment != fingerprint(to_plain(config)):
        raise ValueError(
            f"tuning: {path} was found on training instances of another configuration: leave it out, and controls are "
            "tuned anew"
        )
    return tuning


def _play(
    config: EvaluateConfig,
    experiment: Experiment,
    policies: Sequence[tuple[GrowthPolicy, Normaliser]],
    twins: TwinCache | None,
    tuning: Tuning | None,
    hub: TelemetryHub,
) -> list[ControllerResult]:
    """Play every controller in configured order; return an empty list on later ranks."""
    own = [name for name in OF_RUNS if name in config.controllers]
    found: dict[str, list[Outcome]] = {}

    def play(names: Sequence[str], number: int, label: str | None = None) -> None:
        policy, normaliser = policies[number]
        evaluation = replace(experiment.config.evaluation, controllers=list(names), deterministic=label != SAMPLED)
        run = f", run {number + 1} of {len(policies)}" if names is own and len(policies) > 1 else ""
        for outcome in compare(
            replace(experiment, config=replace(experiment.config, evaluation=evaluation)),
            policy,
            normaliser,
            twins,
            lambda name, done, total: hub.stage(f"{label or name}{run}, epoch", done, total),
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
    return [ControllerResult(name=name, outcomes=tuple(found[name])) for name in order if name in found]
