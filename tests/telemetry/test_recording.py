"""Events, counts and timelines against a recount of what the environment did."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers import Eager, small_env, small_experiment
from torch import Tensor

from esper.blueprints import blueprint_ids
from esper.envs.growth import GrowthEnv
from esper.envs.observations import Observation
from esper.envs.records import StepResult
from esper.envs.rewards import total
from esper.experiment.build import Experiment
from esper.growth import STAGE_NAMES
from esper.growth.actions import NUM_HEADS, OP_NAMES, OP_WAIT, Head, describe
from esper.telemetry.counters import OpCounts
from esper.telemetry.events import (
    EpisodeEnded,
    Event,
    GateEvaluated,
    HostCrashed,
    LastAction,
    Level,
    ShapleyValue,
    StageChanged,
    to_record,
)
from esper.telemetry.hub import Logger, TelemetryHub
from esper.telemetry.recording import IterationRecorder, TimelineRecorder
from esper.telemetry.timeline import EMPTY, SlotTrace

Step = tuple[Observation, Tensor, StepResult]


class Kept(Logger):
    """A logger that keeps events."""

    name = "kept"

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("slots.max_seeds=2")


def run(
    experiment: Experiment, level: Level, crash_at: int | None = None
) -> tuple[GrowthEnv, IterationRecorder, list[Event], list[Step], TimelineRecorder]:
    """One episode of random actions under a recorder; environment 1 crashes on demand."""
    env, kept, steps = small_env(experiment), Kept(), []
    recorder, timelines = IterationRecorder(env, TelemetryHub([kept], level), iteration=3), TimelineRecorder()
    observation, chooser = env.reset(), Eager(2)
    for step in range(env.num_epochs):
        if step == crash_at:
            env.population.hosts.values.detach()[1, 0] = torch.nan
        actions = chooser.act(env.view(observation))
        result = env.step(actions)
        recorder(observation, actions, result)
        timelines.add(env, actions, result)
        steps.append((observation, actions, result))
        observation = result.observation
        if result.terminated.any() and step + 1 < env.num_epochs:
            observation = env.reset(result.terminated)
    return env, recorder, kept.events, steps, timelines


@pytest.fixture(scope="module")
def recorded(
    experiment: Experiment,
) -> tuple[GrowthEnv, IterationRecorder, list[Event], list[Step], TimelineRecorder]:
    return run(experiment, Level.debug)


Recorded = tuple[GrowthEnv, IterationRecorder, list[Event], list[Step], TimelineRecorder]


def test_metrics_agree_with_a_recount(recorded: Recorded) -> None:
    env, recorder, _, steps, _ = recorded
    metrics = recorder.counters.metrics()
    ops = torch.cat([actions[:, Head.OP] for _, actions, _ in steps])
    free = torch.cat([observation.masks.op.sum(1) > 1 for observation, _, _ in steps])
    for op, name in enumerate(OP_NAMES):
        assert metrics[f"ops/attempted/{name}"] == metrics[f"ops/successful/{name}"] == int((ops == op).sum())
        assert metrics[f"ops/choice_share/{name}"] == pytest.approx(float((ops[free] == op).double().mean()))
    shares = {name: metrics[f"stages/{name}"] for name in STAGE_NAMES[1:]}
    after = torch.cat([result.transitions.after for _, _, result in steps])
    assert sum(share or 0.0 for share in shares.values()) == pytest.approx(1)
    for stage, name in enumerate(STAGE_NAMES[1:], start=1):
        assert shares[name] == pytest.approx(float((after == stage).double().mean()))
    rewards = torch.stack([total(result.components) for _, _, result in steps])
    parts = sum(metrics[f"reward/{name}"] or 0.0 for name in ("gain", "rent", "crash"))
    assert parts == pytest.approx(float(rewards.mean()), abs=1e-9)
    episodes = steps[-1][2].episodes
    returns = torch.tensor([episode.episode_return for episode in episodes], dtype=torch.float64)
    assert metrics["charts/num_episodes"] == 3
    assert metrics["charts/num_crashed"] == 0
    assert metrics["charts/episodic_return"] == pytest.approx(float(returns.mean()))
    assert metrics["charts/episodic_return_sem"] == pytest.approx(float(returns.std() / 3**0.5))
    assert float(returns.mean()) == pytest.approx(float(rewards.sum(0).mean())), "gamma is 1 in this preset"
    assert env.rewarder.twins is not None
    never = [float(env.rewarder.twins[instance].accuracy[-1]) for instance in env.instances]
    assert metrics["charts/never_val_accuracy"] == pytest.approx(sum(never) / 3)
    gains = torch.tensor([episode.val_accuracy - own for episode, own in zip(episodes, never, strict=True)]).double()
    assert metrics["charts/val_accuracy_gain"] == pytest.approx(float(gains.mean()))
    assert metrics["charts/val_accuracy_gain_sem"] == pytest.approx(float(gains.std() / 3**0.5), rel=1e-5)
    by_family = {
        family: [episode.episode_return for episode in episodes if episode.instance.family == family]
        for family in {instance.family for instance in env.pool}
    }
    for family, values in by_family.items():
        mean = sum(values) / len(values) if values else None
        assert metrics[f"return_by_family/{family}"] == (pytest.approx(mean) if values else None)


def test_stage_changes_of_a_slot_form_a_chain_that_ends_where_it_is(recorded: Recorded) -> None:
    env, _, events, _, _ = recorded
    changes = [event for event in events if isinstance(event, StageChanged)]
    assert len(changes) > 10
    for environment in range(3):
        for slot, slot_id in enumerate(env.slot_ids):
            chain = [event for event in changes if (event.environment, event.slot) == (environment, slot_id)]
            stages = ["DORMANT", *[event.after for event in chain]]
            assert [event.before for event in chain] == stages[:-1]
            assert stages[-1] == STAGE_NAMES[int(env.state.stage[environment, slot])]
            assert [event.epoch for event in chain] == sorted(event.epoch for event in chain)
    assert {event.iteration for event in changes} == {3}


def test_every_germination_passed_g0_and_every_stage_its_gate(recorded: Recorded) -> None:
    _, _, events, _, _ = recorded
    gates = {
        (event.environment, event.epoch, event.slot, event.gate)
        for event in events
        if isinstance(event, GateEvaluated) and event.passed
    }
    needed = {"GERMINATED": "G0", "TRAINING": "G1", "HOLDING": "G3", "FOSSILIZED": "G5"}
    for event in events:
        if isinstance(event, StageChanged) and event.after in needed:
            assert (event.environment, event.epoch, event.slot, needed[event.after]) in gates


def test_actions_are_recorded_in_words_at_debug_level_only(experiment: Experiment, recorded: Recorded) -> None:
    env, _, events, steps, _ = recorded
    actions = [event for event in events if isinstance(event, LastAction)]
    assert len(actions) == 30
    for number, event in enumerate(actions):
        observation, taken, _ = steps[number // 3]
        row = taken[number % 3]
        assert event.environment == number % 3
        assert event.op == OP_NAMES[row[Head.OP]]
        assert event.slot == (None if row[Head.OP] == OP_WAIT else env.slot_ids[row[Head.SLOT]])
        own = describe(row.tolist(), 0.0, env.slot_ids, blueprint_ids())
        assert (event.blueprint, event.style) == (own.blueprint, own.style)
        assert event.success
        assert event.masked["op"] == (not observation.masks.op[number % 3].all())
    quieter = run(experiment, Level.normal)[2]
    assert [event for event in events if not isinstance(event, LastAction)] == quieter
    assert run(experiment, Level.off)[2] == []


def test_episode_events_and_a_crash(experiment: Experiment) -> None:
    env, recorder, events, steps, _ = run(experiment, Level.normal, crash_at=4)
    ended = [event for event in events if isinstance(event, EpisodeEnded)]
    assert [(event.environment, event.crashed) for event in ended] == [(1, True), (0, False), (2, False)]
    [crash] = [event for event in events if isinstance(event, HostCrashed)]
    assert (crash.environment, crash.epoch, crash.iteration) == (1, 5, 3)
    assert crash.instance == ended[0].instance == steps[4][2].episodes[0].instance.index
    assert (crash.family, crash.twin_crashed) == (ended[0].family, False)
    assert crash.reason == "the training loss was not finite"
    metrics = recorder.counters.metrics()
    assert metrics["charts/num_crashed"] == 1
    assert metrics["charts/num_episodes"] == 3
    assert Counter(event.kind for event in events)["episode_ended"] == 3
    assert metrics["reward/crash"] == pytest.approx(-env.settings.crash_penalty / 30)


def test_shapley_values_are_events_of_the_modules_that_stood_at_the_end(experiment: Experiment) -> None:
    env, kept = small_env(experiment, shapley_permutations=6), Kept()
    recorder, observation, chooser = (
        IterationRecorder(env, TelemetryHub([kept], Level.normal), 4),
        env.reset(),
        Eager(2),
    )
    for _ in range(env.num_epochs):
        actions = chooser.act(env.view(observation))
        result = env.step(actions)
        recorder(observation, actions, result)
        observation = result.observation
    found = {(event.environment, event.slot): event.value for event in kept.events if isinstance(event, ShapleyValue)}
    assert found
    assert found == {
        (episode.environment, slot): value for episode in result.episodes for slot, value in episode.shapley.items()
    }
    for event in kept.events:
        if isinstance(event, ShapleyValue):
            slot = env.slot_ids.index(event.slot)
            assert event.blueprint == blueprint_ids()[int(result.blueprints[event.environment, slot])]
            assert (event.iteration, event.instance) == (4, env.instances[event.environment].index)
    assert not [event for event in run(experiment, Level.normal)[2] if isinstance(event, ShapleyValue)], (
        "off by default"
    )


def test_nothing_measured_is_none_and_not_zero(experiment: Experiment) -> None:
    env = small_env(experiment)
    recorder = IterationRecorder(env, TelemetryHub([]), iteration=1)
    observation = env.reset()
    waiting = torch.zeros(3, NUM_HEADS, dtype=torch.int64)
    recorder(observation, waiting, env.step(waiting))
    metrics = recorder.counters.metrics()
    for name in ("episodic_return", "final_val_accuracy", "never_val_accuracy", "val_accuracy_gain"):
        assert metrics[f"charts/{name}"] is None
    counts = OpCounts()
    assert counts.choice_share() is None


def test_a_timeline_is_the_episode_of_one_environment(recorded: Recorded) -> None:
    env, _, _, steps, timelines = recorded
    assert env.rewarder.twins is not None
    records = {episode.environment: episode for _, _, result in steps for episode in result.episodes}
    for environment in range(3):
        timeline = timelines.timeline(env, records[environment], "eager")
        assert torch.equal(timeline.stages, torch.stack([r.transitions.before[environment] for _, _, r in steps]))
        assert torch.equal(timeline.val_accuracy, torch.stack([r.accuracy[environment] for _, _, r in steps]))
        assert timeline.twin_accuracy is not None
        assert torch.equal(timeline.twin_accuracy, env.rewarder.twins[env.instances[environment]].accuracy)
        assert [mark.op for mark in timeline.ops] == [OP_NAMES[a[environment, Head.OP]] for _, a, _ in steps]
        assert timeline.instance == env.instances[environment].index


def test_events_tell_the_stages_and_modules_that_were_recorded(recorded: Recorded) -> None:
    """Epoch by epoch; an instant cull leaves the module in the record of its epoch, no event does."""
    env, _, events, steps, timelines = recorded
    trace = SlotTrace()
    for event in events:
        trace.take(to_record(event))
    records = {episode.environment: episode for _, _, result in steps for episode in result.episodes}
    for environment, episode in trace.finished.items():
        rebuilt = episode.timeline(env.slot_ids, env.num_epochs, "eager")
        known = timelines.timeline(env, records[environment], "eager")
        assert torch.equal(rebuilt.stages, known.stages)
        for stages, told, kept in zip(known.stages.tolist(), rebuilt.blueprints, known.blueprints, strict=True):
            occupied = [slot for slot, stage in enumerate(stages) if STAGE_NAMES[stage] not in EMPTY]
            assert [told[slot] for slot in occupied] == [kept[slot] for slot in occupied]
        assert (rebuilt.family, rebuilt.instance) == (known.family, str(known.instance))
    assert len(trace.finished) == 3
    assert {name for episode in trace.finished.values() for name in episode.stages()}, "something grew"
