"""The real parts of an experiment, shrunk until an episode takes a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from esper.config import compose
from esper.controllers import (
    Controller,
    ControllerContext,
    HeuristicParameters,
    PlannedGermination,
    ProbeAndKeepParameters,
    ProbeRuleParameters,
    RandomLegal,
    Tuning,
    build_controller,
)
from esper.controllers.base import Stateless
from esper.envs.growth import GrowthEnv
from esper.envs.instances import InstancePool
from esper.envs.loader import InstanceLoader
from esper.envs.records import EnvView, StepResult
from esper.envs.twins import TwinCache
from esper.experiment.build import Experiment, build_experiment
from esper.growth import Stage
from esper.growth.actions import NUM_HEADS, Blueprint, Head, Op, Tempo
from esper.hosts import SegmentedHost
from esper.policy import GrowthPolicy
from esper.runtime.options import Amp, Greedy
from esper.runtime.precision import supported
from esper.runtime.registry import recording
from esper.tasks import Split

SMALL = (
    "+preset=smoke",
    "telemetry.console=off",
    "env.mapping=matmul",
    "env.num_epochs=10",
    "env.steps_per_epoch=1",
    "task.batch_size=16",
    "slots.min_training_epochs=1",
    "slots.min_cull_age=1",
    "trainer.num_envs=3",
)


SAMPLES = 64

NEEDS_FP16 = pytest.mark.skipif(
    not supported(Amp.fp16, torch.device("cpu")), reason="needs a CPU that trains in fp16, this one does not"
)


@contextmanager
def undone() -> Iterator[None]:
    """Undo registrations made within the block."""
    with recording() as registrations:
        yield
    for registration in reversed(registrations):
        registration.undo()


@cache
def small_experiment(*overrides: str, samples: int = SAMPLES) -> Experiment:
    """The smoke preset with ten epochs of one step, growth in a hurry, and a few images per split.

    One for all tests that ask for the same: nothing in it changes.
    """
    experiment = build_experiment(compose(*SMALL, *overrides))
    task = experiment.task

    def few(split: Split) -> Split:
        return Split(split.inputs[:samples], split.targets[:samples])

    task = replace(task, train=few(task.train), val=few(task.val), test=few(task.test))
    loader = InstanceLoader(task, experiment.host, experiment.loader.training)
    return replace(experiment, task=task, loader=loader)


_twins: dict[tuple[int, int], TwinCache] = {}


def small_env(
    experiment: Experiment,
    *,
    num_envs: int = 3,
    families: Sequence[str] = (),
    run_seed: int = 0,
    measure_test: bool = False,
    **settings: object,
) -> GrowthEnv:
    """An environment over training instances, of some families only if named, with twins of its own height.

    ``settings`` replace its numbers. Environments alike share their twins, which is what twins are for.
    """
    key = id(experiment), num_envs
    if key not in _twins:
        _twins[key] = TwinCache(experiment.loader, lambda: experiment.population(num_envs))
    twins = _twins[key]
    pool = experiment.pool("train", experiment.config.instances.num_train)
    if families:
        host, classes = experiment.host, experiment.task.num_classes
        weights = dict.fromkeys(families, 1.0)
        shape = {"host_family": host.family, "num_blocks": host.num_blocks, "num_classes": classes}
        pool = InstancePool.build(weights, len(pool), "train", **shape)  # type: ignore[arg-type]
    env = experiment.env(range(num_envs), pool, twins, run_seed=run_seed, measure_test=measure_test)
    env.settings = env.rewarder.settings = replace(env.settings, **settings)  # type: ignore[arg-type]
    return env


def action(op: Op, **heads: int) -> Tensor:
    """One row, ``int64 [8]``: ``action(Op.GERMINATE, slot=1, blueprint=2)``."""
    row = torch.zeros(NUM_HEADS, dtype=torch.int64)
    row[Head.OP] = op
    for name, value in heads.items():
        row[Head[name.upper()]] = value
    return row


def controller(
    experiment: Experiment, name: str, num_envs: int = 3, seed: int = 0, **context_fields: object
) -> Controller:
    """A controller of the registry; the learned one has a new policy."""
    policy, normaliser = experiment.policy()
    context = ControllerContext(
        num_envs=num_envs,
        space=experiment.space,
        seed=seed,
        schedule=experiment.schedule(),
        policy=policy,
        normaliser=normaliser,
        deterministic=True,
        greedy=Greedy.mode,
        families=["intact"] * num_envs,
        tuning=some_tuning(experiment.slot_ids),
        learned_kept=[[(experiment.slot_ids[0], "conv_light")]] * num_envs,
    )
    return build_controller(name, replace(context, **context_fields))  # type: ignore[arg-type]


def some_tuning(slot_ids: Sequence[str]) -> Tuning:
    """Make a tuning like the result of a search."""
    plan = (PlannedGermination(1, 0, Blueprint.CONV_LIGHT),)
    return Tuning(
        budget=1000,
        seed=0,
        experiment="0123",
        slot_ids=tuple(slot_ids),
        found={
            "heuristic": HeuristicParameters(patience=1),
            "probe_rule": ProbeRuleParameters(min_starvation=0.3),
            "probe_and_keep": ProbeAndKeepParameters(),
            "schedule_best": plan,
            "schedule_per_family": {"intact": plan, "starved_0": ()},
            "static_full": "conv_light",
            "static_best": "norm",
        },
        spent={"heuristic": 990, "schedule_best": 1000},
        returns={"heuristic": 1.5},
    )


class Eager(Stateless):
    """Random legal actions that seldom wait and ramp fast, so that short episodes get to every stage."""

    name = "eager"
    weights = torch.ones(len(Op))
    weights[Op.GERMINATE : Op.EXTEND + 1] = torch.tensor([3.0, 0.7, 4.0, 1.5, 0.7])

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._rest = RandomLegal(self._generator)

    def act(self, view: EnvView) -> Tensor:
        masks = view.observation.masks
        op = torch.multinomial(self.weights * masks.op, 1, generator=self._generator)
        only = torch.zeros_like(masks.op).scatter(1, op, True)
        observation = replace(view.observation, masks=replace(masks, op=only))
        actions = self._rest.act(replace(view, observation=observation))
        actions[:, Head.TEMPO] = Tempo.FAST
        return actions


@torch.no_grad()
def give_opinions(policy: GrowthPolicy, scale: float = 30.0) -> None:
    """Make a new policy's logits differ clearly."""
    for network in policy.heads.networks.values():
        getattr(network, "score", network)[-1].weight.mul_(scale)


def play_episode(env: GrowthEnv, chooser: Controller) -> list[StepResult]:
    """Play one episode of every environment from a reset, and return all steps."""
    observation = env.reset()
    chooser.reset(torch.ones(env.num_envs, dtype=torch.bool))
    results = []
    for _ in range(env.num_epochs):
        results.append(env.step(chooser.act(env.view(observation))))
        observation = results[-1].observation
    return results


def waits(num_envs: int, **rows: Tensor) -> Tensor:
    """Return WAIT everywhere but in the named environments: ``waits(3, e1=action(...))``."""
    actions = torch.zeros(num_envs, NUM_HEADS, dtype=torch.int64)
    for name, row in rows.items():
        actions[int(name.removeprefix("e"))] = row
    return actions


def replay(env: GrowthEnv, script: Sequence[Tensor]) -> list[StepResult]:
    """Return the steps from a reset under given actions, without further resets."""
    env.reset()
    return [env.step(actions) for actions in script]


def plain_network(env: GrowthEnv, environment: int, kept_only: bool) -> tuple[SegmentedHost, int]:
    """One environment's network as a plain float64 module, and how many parameters its seed modules have.

    Args:
        env: the environment.
        environment: which.
        kept_only: with FOSSILIZED modules only, instead of all that act on the host.
    """
    network = env.population.grown(environment, env.state.alpha[environment].tolist()).double()
    added = 0
    for slot, slot_id in enumerate(env.slot_ids):
        kept = env.state.stage[environment, slot] == Stage.FOSSILIZED
        if slot_id not in network.attached:
            continue
        if kept or (not kept_only and env.state.alpha[environment, slot] > 0):
            added += sum(parameter.numel() for parameter in network.attached[slot_id].parameters())
        else:
            network.detach(slot_id)
    return network, added


def plain_points(network: SegmentedHost, split: Split, weights: Tensor) -> float:
    """100 x weighted mean probability of the right class, by torch alone."""
    with torch.no_grad():
        probabilities = network(split.inputs.double()).softmax(dim=1)
    right = probabilities[torch.arange(len(split)), split.targets]
    return 100 * float((right * weights.double()).sum() / weights.double().sum())


@torch.no_grad()
def mask_host(host: SegmentedHost, mask: Mapping[str, Tensor]) -> None:
    """Set the weights that do not exist to zero, in place."""
    for name, value in host.named_host_parameters():
        value.masked_fill_(~mask[name], 0.0)


RATIO_TOLERANCES = {torch.bfloat16: 1e-5, torch.float16: 5e-3}
"""Tolerance on a ratio that should be 1: some processors sum fp16 products in fp16, in another order for one step than
for a whole rollout.
"""
