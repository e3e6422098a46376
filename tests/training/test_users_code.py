"""A user's code that fails while it plays: one line that names the key, the code, the error and its place."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers import SMALL, action, small_env, small_experiment, waits

from esper.blueprints import blueprint_ids
from esper.config import Config, compose, from_yaml
from esper.config.errors import RunError
from esper.config.evaluate import EvaluateConfig
from esper.config.plugins import activate
from esper.envs.rewards import REWARDS
from esper.evaluation.play import play
from esper.experiment.build import Experiment, build_experiment
from esper.experiment.shortage import shortages
from esper.growth.actions import Op
from esper.runtime.user_code import UsersCodeError
from esper.training.run import train
from tests.tiers import few

PLUGIN = "plugins=[played_code]"
GROWS = (PLUGIN, "slots.blueprints=[mine]")
SOURCE = '''
import sys

import torch
from torch import nn
from esper.blueprints import register_blueprint
from esper.controllers import Never, register_controller
from esper.envs.rewards import RewardFamily, paired_reward, points_score, register_reward

mood = ""
left = 0


def goes_wrong(part, result):
    """The result, or what another mood makes of it."""
    global left
    where, _, how = mood.partition(" ")
    if where != part:
        return result
    if left:
        left -= 1
        return result
    if how == "raises":
        raise KeyError("of my own")
    if how == "exits":
        sys.exit(3)
    if how == "none":
        return None
    if how == "tuple":
        return (result,)
    if how == "shape":
        return result[..., :-1]
    if how == "channels":
        return result[:, :-1]
    return {"float": lambda x: x.float(), "range": lambda x: x + 99, "int": lambda x: x.long()}[how](result)


class Mine(Never):
    def reset(self, which):
        goes_wrong("reset", None)

    def act(self, view):
        return goes_wrong("act", super().act(view))


def step(previous, inputs, *, gamma, crash_penalty):
    potential, components = paired_reward(previous, inputs, gamma=gamma, crash_penalty=crash_penalty)
    if mood.startswith("component"):
        return potential, components | {"gain": goes_wrong("component", components["gain"])}
    return goes_wrong("step", (potential, components))


def score(scores, guess):
    return goes_wrong("score", points_score(scores, guess))


class Back(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return goes_wrong("backward", gradient)


class Wide(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.zeros(()))

    def initialise(self, generator):
        goes_wrong("birth", None)
        nn.init.zeros_(self.scale)

    def forward(self, x):
        added = self.conv(x)
        if mood.startswith("backward"):
            added = Back.apply(added)
        return goes_wrong("forward", x + self.scale * added)


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        return goes_wrong("block", self.conv(x).relu())


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 10)

    def forward(self, x):
        return goes_wrong("head", self.linear(x.mean(dim=(2, 3))))


def host():
    goes_wrong("build", None)
    return nn.Sequential(Block(1, 8), Block(8, 8), Head())


register_controller("mine", lambda context: Mine())
register_reward("mine", RewardFamily(score=score, step=step))
register_blueprint("cnn", "mine", Wide)
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A user's module, whose mood is set by the tests."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "played_code.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        activate(["played_code"])
        yield importlib.import_module("played_code")
        activate([])


@pytest.fixture
def set_mood(own: Any) -> Iterator[Callable[..., None]]:
    def change(mood: str, after: int = 0) -> None:
        own.mood, own.left = mood, after

    yield change
    change("")


def line(work: Callable[[], object]) -> str:
    """Return the message of an error."""
    with pytest.raises(UsersCodeError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


RAISES, EXITS = "KeyError: 'of my own' (played_code.py:", "it asks to exit with code 3 (played_code.py:"

OF_CONTROLLERS = {
    "act raises": RAISES,
    "act exits": EXITS,
    "act none": "must return a tensor, int64 [3, 8], not a NoneType",
    "act tuple": "must return a tensor, int64 [3, 8], not a tuple",
    "act shape": "must return int64 [3, 8] on the cpu, got int64 [3, 7] on cpu",
    "act float": "must return int64 [3, 8] on the cpu, got float32 [3, 8] on cpu",
    "act range": "chooses 99 for the head 'op' of environment 0, which has 0 to 5",
    "reset raises": RAISES,
    "reset exits": EXITS,
}


@pytest.mark.parametrize("mood", OF_CONTROLLERS)
@few(4)
def test_a_controller_that_fails_while_it_plays(own: Any, set_mood: Callable[..., None], mood: str) -> None:
    env = small_env(small_experiment(*GROWS, "env.mapping=vmap"))
    set_mood(mood)
    said = line(lambda: play(own.Mine(), env, lambda done, total: None))
    assert said.startswith(f"controller 'never': played_code.Mine.{mood.split()[0]}")
    assert OF_CONTROLLERS[mood] in said


OF_REWARDS = {
    "step raises": RAISES,
    "step exits": EXITS,
    "step none": "must return a Potential and components by name, not a NoneType",
    "step tuple": "must return a Potential and components by name, not a tuple",
    "component none": "gain must be a tensor float [3], not a NoneType",
    "component shape": "gain must be float [3] on the cpu, got float64 [2] on cpu",
    "component int": "gain must be float [3] on the cpu, got int64 [3] on cpu",
    "score raises": RAISES,
    "score exits": EXITS,
    "score none": "must be a tensor float [3], not a NoneType",
    "score shape": "must be float [3] on the cpu, got float64 [2] on cpu",
}


@pytest.mark.parametrize("mood", OF_REWARDS)
def test_a_reward_that_fails_while_it_is_earned(own: Any, set_mood: Callable[..., None], mood: str) -> None:
    env = small_env(small_experiment(*GROWS, "env.mapping=vmap"))
    env.rewarder.family = REWARDS["mine"]
    env.reset()
    set_mood(mood)
    said = line(lambda: env.step(waits(3)))
    part = "score" if mood.startswith("score") else "step"
    assert said.startswith(f"reward.family: {part} of played_code.{part}")
    assert OF_REWARDS[mood] in said


OF_BLUEPRINTS = {
    "birth raises": RAISES,
    "birth exits": EXITS,
    "forward raises": RAISES,
    "forward exits": EXITS,
    "forward none": "NoneType",
    "forward tuple": "the shape of its input, got a tuple",
    "forward shape": "the shape of its input, got [",
    "backward raises": RAISES,
}


@pytest.mark.parametrize("mapping", ["loop", "vmap"])
@pytest.mark.parametrize("mood", OF_BLUEPRINTS)
@few(4)
def test_a_blueprint_that_fails_while_it_grows(
    own: Any, set_mood: Callable[..., None], mood: str, mapping: str
) -> None:
    env = small_env(small_experiment(*GROWS, f"env.mapping={mapping}"))
    env.reset()
    set_mood(mood)
    born = action(Op.GERMINATE, blueprint=blueprint_ids().index("mine"))
    said = line(lambda: env.step(waits(3, e1=born)))
    back = mood.startswith("backward")
    assert said.startswith(
        "host.target or plugins: a backward pass: " if back else "plugins: blueprint 'mine' of cnn hosts: "
    )
    assert OF_BLUEPRINTS[mood] in said


OF_HOSTS = {
    "block raises": RAISES,
    "block exits": EXITS,
    "block tuple": "must pass on tensors, not a tuple",
    "block channels": "Error: ",
    "head raises": RAISES,
    "head none": "NoneType",
    "head shape": "it must return logits [16, 10], got [16, 9]",
    "build raises": RAISES,
    "build exits": EXITS,
}


@cache
def host_experiment(mapping: str) -> Experiment:
    host = ("host=custom", "host.target=played_code:host", "host.slots=['0','1']", "slots.num_slots=2")
    few = (
        "env.num_epochs=3",
        "env.steps_per_epoch=1",
        "task.batch_size=16",
        "trainer.num_envs=3",
        "ppo.num_minibatches=1",
    )
    return build_experiment(compose("task=digits", PLUGIN, *host, *few, f"env.mapping={mapping}"))


@pytest.mark.parametrize("mapping", ["loop", "vmap"])
@pytest.mark.parametrize("mood", OF_HOSTS)
@few(4)
def test_a_host_that_fails_while_it_trains(own: Any, set_mood: Callable[..., None], mood: str, mapping: str) -> None:
    env = small_env(host_experiment(mapping))
    env.reset()
    set_mood(mood)
    said = line(lambda: (env.reset(), env.step(waits(3))))
    assert said.startswith("host.target: ")
    assert OF_HOSTS[mood] in said


def test_what_was_done_can_be_used_again(tmp_path: Path) -> None:
    for config, resumable, end in (
        (compose(), True, f"own; resume={tmp_path} resumes this run"),
        (compose(), False, "own"),
        (EvaluateConfig(checkpoint="x"), False, f"own; tuning={tmp_path / 'tuning.json'} keeps what was tuned"),
    ):
        (tmp_path / "tuning.json").touch()
        with pytest.raises(RunError) as caught, shortages(config, tmp_path, lambda resumable=resumable: resumable):
            raise UsersCodeError("own")
        assert str(caught.value) == end


def test_errors_of_our_own_stay_what_they_are(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = small_env(small_experiment(*GROWS, "env.mapping=vmap"))
    env.reset()
    monkeypatch.setattr("esper.envs.rewarder.rent", None)
    with pytest.raises(TypeError):
        env.step(waits(3))


WORDS = (*SMALL, *GROWS, "env.mapping=vmap", "evaluation.num_hosts=2", "trainer.num_iterations=2")
RUNS = {
    "in training": ("step raises", 5, ("reward.family=mine", "evaluation.controllers=[never]")),
    "in the comparison": ("act exits", 5, ("evaluation.controllers=[never,mine]",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", RUNS)
def test_a_run_that_a_users_code_ends_says_how_to_go_on_and_goes_on_once_it_is_mended(
    own: Any, set_mood: Callable[..., None], tmp_path: Path, part: str
) -> None:
    (mood, after, words), run_dir = RUNS[part], tmp_path / "run"
    set_mood(mood, after)
    with pytest.raises(RunError) as caught:
        train(compose(*WORDS, *words), run_dir)
    said, status = str(caught.value), json.loads((run_dir / "status.json").read_text())
    assert "played_code." in said
    assert said.endswith(f"resume={run_dir} resumes this run")
    assert status["state"] == "failed"
    assert "in goes_wrong" in status["traceback"]
    set_mood("")
    train(replace(from_yaml((run_dir / "config.yaml").read_text(), Config), resume="auto"), run_dir)
    assert json.loads((run_dir / "status.json").read_text())["state"] == "finished"
