"""Runs that begin by imitating a controller: who plays, what is learned and kept, and what comes after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import SMALL, small_env, small_experiment
from torch import Tensor

from esper.config import compose
from esper.config.store import to_yaml
from esper.controllers import Controller, Learned
from esper.envs.growth import GrowthEnv
from esper.experiment.build import build_experiment
from esper.experiment.checkpoint import load_checkpoint
from esper.experiment.imitating import build_expert
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, OP_WAIT, Head
from esper.runtime.options import Greedy
from esper.runtime.records import read_jsonl
from esper.runtime.run_folder import RunFolder
from esper.telemetry.hub import TelemetryHub
from esper.training.run import train
from esper.training.trainer import Trainer

TWO = (
    "evaluation.schedule.first.slot=1",
    "evaluation.schedule.first.blueprint=norm",
    "+evaluation.schedule={second: {epoch: 2, slot: 0, blueprint: conv_light}}",
    "slots.max_seeds=2",
)
"""A plan of two modules."""

IMITATING = (*TWO, "imitation.controller=schedule")


def trainer_of(tmp_path: Path, *words: str) -> Trainer:
    config = compose(*SMALL, "evaluation.num_hosts=3", *IMITATING, *words)
    trainer = Trainer(build_experiment(config), RunFolder.create(tmp_path / "run", to_yaml(config)), TelemetryHub([]))
    trainer.begin()
    return trainer


def actions_of(controller: Controller, env: GrowthEnv) -> Tensor:
    """Play an episode of every environment, and return its actions, ``int64 [E, T, 8]``."""
    observation, actions = env.reset(), []
    controller.reset(torch.ones(env.num_envs, dtype=torch.bool))
    for _ in range(env.num_epochs):
        actions.append(controller.act(env.view(observation)))
        observation = env.step(actions[-1]).observation
    return torch.stack(actions, 1)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("algorithm=a2c", "policy.body=shared", "trainer.num_steps=7")])
def test_the_greedy_policy_replays_what_it_has_imitated_on_hosts_that_it_has_not_seen(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    rest = ("imitation.iterations=15", "trainer.num_iterations=15", "imitation.update_epochs=20", "imitation.lr=3e-3")
    trainer = trainer_of(tmp_path, *rest, *words)
    metrics = [trainer.iterate() for _ in range(15)]
    assert metrics[-1] is not None
    assert metrics[-1]["imitation/agreement"] == metrics[-1]["imitation/agreement_acting"] == 1
    experiment = small_experiment(*IMITATING, *rest, *words)
    pool = experiment.pool("held_out", 3)
    expert = build_expert(experiment, *experiment.policy(), num_envs=3)
    learned = Learned(trainer.policy, trainer.normaliser, 3, generator=torch.Generator(), greedy=Greedy.mode)
    found = [
        actions_of(
            each, experiment.env(range(3), pool, small_env(experiment).rewarder.twins, run_seed=1, measure_test=False)
        )
        for each in (learned, expert)
    ]
    assert (found[1][..., Head.OP] == OP_GERMINATE).sum(1).tolist() == [2, 2, 2], "there was something to replay"
    assert torch.equal(*found)


@pytest.mark.slow
def test_the_controller_plays_first_and_the_policy_from_then_on(tmp_path: Path) -> None:
    words = ("trainer.num_iterations=2", "evaluation.controllers=[never]")
    train(compose(*SMALL, "evaluation.num_hosts=3", "telemetry.plots=false", *IMITATING, *words), tmp_path / "run")
    first, second = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [first[f"ops/attempted/{op}"] for op in ("GERMINATE", "CULL", "EXTEND")] == [6, 0, 0]
    assert second["ops/attempted/CULL"] + second["ops/attempted/EXTEND"] > 0, "it samples"
    assert [first["charts/env_epochs"], second["charts/env_epochs"]] == [30, 60]
    assert "losses/approx_kl" in second.keys() - first.keys()
    assert {"imitation/agreement", "losses/cross_entropy"} <= first.keys() - second.keys()
    last = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt")
    assert float(last["normaliser"]["count"]) == 60
    assert not [name for name in last["training"] if name.startswith("imitation")], "it is over"
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "best.pt")["iteration"] == 2, "the first is no policy's"


def test_the_buffer_holds_the_controllers_actions_and_what_the_policy_thought_of_them(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "trainer.num_steps=7")
    seen: dict[str, Tensor] = {}
    assert trainer.imitating is not None
    algorithm = trainer.imitating.algorithm
    update = algorithm.update

    def spied(buffer, iteration):  # type: ignore[no-untyped-def]
        data = buffer.data
        said = data.evaluate(trainer.policy)
        seen.update(
            actions=data.actions.clone(),
            kept=data.log_prob.clone(),
            log_prob=said.log_prob.detach(),
            q=said.q.detach() - data.q,
        )
        return update(buffer, iteration)

    algorithm.update = spied  # type: ignore[method-assign]
    trainer.iterate()
    ops = seen["actions"][..., Head.OP]
    assert set(ops.flatten().tolist()) == {OP_WAIT, OP_GERMINATE, OP_FOSSILIZE}
    torch.testing.assert_close(seen["kept"], seen["log_prob"], atol=1e-5, rtol=1e-4)
    assert float(seen["q"].abs().max()) < 1e-5
    assert trainer.imitating is None, "one iteration was all"
