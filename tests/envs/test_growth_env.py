"""The growth environment: effects and order of a step."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from helpers import (
    NEEDS_FP16,
    Eager,
    action,
    controller,
    plain_network,
    plain_points,
    play_episode,
    replay,
    small_env,
    small_experiment,
    waits,
)
from torch import Tensor

from esper.envs.features import BASE_INDEX, feature_table, num_features
from esper.envs.instances import InstancePool
from esper.envs.records import StepResult
from esper.experiment.build import Experiment
from esper.growth import Stage
from esper.growth.actions import OP_GERMINATE, OP_WAIT, ActionMasks, AlphaSpeed, BlendAlgorithm, Head, Op, head_sizes
from esper.growth.stages import REASONS, Reason
from esper.population import MAPPINGS, NUM_PROBES, PROBE_NAMES, probe_hosts
from esper.population.scaling import MAX_SCALE
from tests.tiers import few, slowly

CONV_LIGHT = 1
GERMINATE = action(Op.GERMINATE, slot=1, blueprint=CONV_LIGHT, alpha_target=2)
LAST_ACTION = [BASE_INDEX["last_success"], *range(BASE_INDEX["last_op_wait"], BASE_INDEX["last_op_wait"] + 6)]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("env.num_epochs=8", "slots.max_seeds=2")


def eager_script(experiment: Experiment, seed: int, num_envs: int = 3) -> list[Tensor]:
    """Draw actions that are legal at the time, to be replayed."""
    env, chooser, script = small_env(experiment, num_envs=num_envs), Eager(seed), []
    observation = env.reset()
    for _ in range(env.num_epochs):
        script.append(chooser.act(env.view(observation)))
        observation = env.step(script[-1]).observation
    return script


def assert_equal_steps(a: StepResult, b: StepResult, rows: Tensor | slice = slice(None)) -> None:
    """Bit-equal rewards, observations and masks of some environments."""
    assert torch.equal(a.reward[rows], b.reward[rows])
    assert torch.equal(a.accuracy[rows], b.accuracy[rows])
    assert torch.equal(a.terminated[rows], b.terminated[rows])
    assert torch.equal(a.observation.features[rows], b.observation.features[rows])
    assert torch.equal(a.observation.blueprint_index[rows], b.observation.blueprint_index[rows])
    assert_equal_masks(a.observation.masks, b.observation.masks, rows)


def assert_equal_masks(a: ActionMasks, b: ActionMasks, rows: Tensor | slice) -> None:
    for field in fields(ActionMasks):
        assert torch.equal(getattr(a, field.name)[rows], getattr(b, field.name)[rows]), field.name


def is_legal(masks: ActionMasks, actions: Tensor) -> Tensor:
    """Return legality by the masks, ``bool [E]``: an op on a slot, and for GERMINATE a blueprint that fits it."""
    legal = []
    for environment, row in enumerate(actions.tolist()):
        op, slot, blueprint = row[Head.OP], row[Head.SLOT], row[Head.BLUEPRINT]
        offered = bool(masks.slot[environment, op, slot])
        fits = op != OP_GERMINATE or bool(masks.blueprint[environment, slot, blueprint])
        legal.append(op == OP_WAIT or (offered and fits))
    return torch.tensor(legal)


# ------------------------------------------------------------------------------------------------------ determinism


def test_same_seed_and_actions_give_identical_steps(experiment: Experiment) -> None:
    script = eager_script(experiment, seed=1)
    runs = [replay(small_env(experiment), script) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert_equal_steps(a, b)
        assert a.episodes == b.episodes
    assert runs[0][-1].episodes


def test_an_episode_does_not_depend_on_what_came_before(experiment: Experiment) -> None:
    """Repeating the same instances after half an episode, and after a whole one, is bit-equal to the first time."""
    script = eager_script(experiment, seed=1)
    env = small_env(experiment)
    env.pool = InstancePool(env.pool.instances[:1])
    first = replay(env, script)
    replay(env, script[:5])
    for again in (replay(env, script), replay(env, script)):
        for a, b in zip(first, again, strict=True):
            assert_equal_steps(a, b)
            assert a.episodes == b.episodes
    assert torch.stack([result.reward for result in first]).any()


def test_shapley_values_sum_to_what_the_modules_bring_and_change_nothing_else(experiment: Experiment) -> None:
    """Asked for or not: bit-equal rewards and observations. Values are those of the network as it stands at the end."""
    script = eager_script(experiment, seed=1)
    plain, env = small_env(experiment), small_env(experiment, shapley_permutations=4)
    runs = [replay(each, script) for each in (plain, env)]
    for a, b in zip(*runs, strict=True):
        assert_equal_steps(a, b)
        for name, values in a.components.items():
            assert torch.equal(values, b.components[name])
    assert not any(episode.shapley for episode in runs[0][-1].episodes)
    assert not any(result.episodes for result in runs[1][:-1])
    acting = 0
    for episode in runs[1][-1].episodes:
        number = episode.environment
        network, _ = plain_network(env, number, kept_only=False)
        weights = env.loader.val(env.instances).weights[number]
        everything = plain_points(network, env.loader.task.val, weights)
        for slot_id in list(network.attached):
            network.detach(slot_id)
            assert slot_id in episode.shapley
        bare = plain_points(network, env.loader.task.val, weights)
        assert sum(episode.shapley.values()) == pytest.approx(everything - bare, abs=1e-3)
        acting += len(episode.shapley)
    assert acting >= 3
    again = small_env(experiment, shapley_permutations=4)
    assert [e.shapley for e in replay(again, script)[-1].episodes] == [e.shapley for e in runs[1][-1].episodes]


def test_pairs_are_left_out_where_they_would_pass_the_cap(experiment: Experiment) -> None:
    """Three modules need seven configurations."""
    for cap, measured in ((7, True), (6, False)):
        env = small_env(experiment, num_envs=1, pairs_every=1, max_configurations=cap)
        env.rules = replace(env.rules, max_seeds=3)
        env.reset()
        for slot in range(3):
            env.step(waits(1, e0=action(Op.GERMINATE, slot=slot, blueprint=CONV_LIGHT)))
        while not (env.state.alpha > 0).all():
            env.step(waits(1))
        assert env.state.interaction.isfinite().all() == measured


def test_another_run_seed_draws_other_hosts(experiment: Experiment) -> None:
    drawn = []
    for run_seed in (0, 1, 2):
        env = small_env(experiment, run_seed=run_seed)
        for _ in range(2):
            env.reset()
            drawn.append(tuple(instance.index for instance in env.instances))
            assert len(set(drawn[-1])) == env.num_envs, "different hosts side by side while there are enough"
    assert len(set(drawn)) > 1


def test_two_controllers_on_one_instance_see_the_same_host_and_data(experiment: Experiment) -> None:
    bare, grown = small_env(experiment), small_env(experiment)
    first = [env.reset() for env in (bare, grown)]
    assert torch.equal(first[0].features, first[1].features)
    for epoch in range(2):  # the modules develop in isolation all the while
        epochs = bare.history.epoch.tolist()
        assert torch.equal(bare.loader.order(bare.instances, epochs), grown.loader.order(grown.instances, epochs))
        bare.step(waits(3))
        grown.step(waits(3, e0=GERMINATE, e2=GERMINATE) if epoch == 0 else waits(3))
        assert torch.equal(bare.history.losses[:, -1], grown.history.losses[:, -1])
    for name in ("values", "exp_avg", "exp_avg_sq", "steps"):
        a, b = (getattr(env.population.hosts, name).detach() for env in (bare, grown))
        assert torch.equal(a, b), name
    bare.step(waits(3))
    grown.step(waits(3))
    assert not torch.equal(bare.history.losses[:, -1], grown.history.losses[:, -1]), "blending is felt"
    epochs = bare.history.epoch.tolist()
    assert torch.equal(bare.loader.order(bare.instances, epochs), grown.loader.order(grown.instances, epochs))


def test_data_order_and_host_differ_between_instances(experiment: Experiment) -> None:
    env = small_env(experiment)
    env.reset()
    order = env.loader.order(env.instances, [0, 0, 0])
    later = env.loader.order(env.instances, [1, 1, 1])
    assert len({tuple(row.tolist()) for row in (*order, *later)}) == 6
    values = env.population.hosts.values.detach()
    assert len({tuple(row.tolist()) for row in values}) == 3


@pytest.mark.parametrize("mapping", sorted(MAPPINGS))
@few(2)
def test_an_environment_does_not_notice_what_its_neighbours_do(mapping: str) -> None:
    """Bit-equal whatever its neighbours do, as long as its own stacks are the same: that of hosts always is.

    A stack of modules is higher when a neighbour has the same blueprint in the same slot, and kernels for another
    number of rows may round otherwise; a loop over rows has no such kernels.
    """
    experiment = small_experiment(f"env.mapping={mapping}", "env.num_epochs=7", "slots.max_seeds=2")
    own = eager_script(experiment, seed=4) if mapping == "loop" else [waits(3)] * 7
    other = eager_script(experiment, seed=5)
    mixed = [torch.cat([a[:1], b[1:]]) for a, b in zip(own, other, strict=True)]
    alone = [torch.cat([a[:1], waits(2)]) for a in own]
    for a, b in zip(replay(small_env(experiment), mixed), replay(small_env(experiment), alone), strict=True):
        assert_equal_steps(a, b, slice(0, 1))


# ------------------------------------------------------------------------------------------------ legality, execution


@pytest.mark.parametrize("seed", [0, 1])
def test_masks_say_exactly_what_execution_does(experiment: Experiment, seed: int) -> None:
    """Over random sequences an action is legal if and only if it succeeds, and an illegal one changes nothing. Half of
    the actions are drawn without masks; failing ones are replayed as WAIT in a second environment, which must stay
    equal.

    Half of the actions are drawn from all there are, and those that fail are replayed as WAIT in a second environment,
    which must go on alike.
    """
    env, shadow = small_env(experiment), small_env(experiment)
    chooser, random = Eager(seed), torch.Generator().manual_seed(seed)
    observation, _ = env.reset(), shadow.reset()
    sizes = head_sizes(*experiment.compatible.shape)
    counts = [0, 0]
    for step in range(env.num_epochs):
        anything = torch.stack([torch.randint(size, (3,), generator=random) for size in sizes], dim=1)
        actions = chooser.act(env.view(observation))
        if step == 0:
            actions[0] = action(Op.GERMINATE, slot=0, blueprint=0)  # noop fits no host
        elif step % 2:
            actions = anything
        elif step == 2:
            actions[0] = anything[0]
        legal = is_legal(observation.masks, actions)
        stages = env.state.stage
        result = env.step(actions)
        assert torch.equal(result.applied.success, legal)
        assert torch.equal(result.stages_before, stages)
        mirrored = shadow.step(torch.where(legal[:, None], actions, 0))
        assert torch.equal(result.reward, mirrored.reward)
        a, b = result.observation.features.clone(), mirrored.observation.features.clone()
        a[:, LAST_ACTION] = b[:, LAST_ACTION] = 0.0
        assert torch.equal(a, b)
        assert torch.equal(env.population.blueprint, shadow.population.blueprint)
        for mine, its in zip(env.population.stacks(), shadow.population.stacks(), strict=True):
            assert mine.environments == its.environments
            assert torch.equal(mine.values, its.values)
        counts[0] += int(legal.sum())
        counts[1] += int((~legal).sum())
        observation = result.observation
        assert torch.equal(observation.features[:, BASE_INDEX["last_success"]], legal.float())
    assert min(counts) >= 6, "both kinds occurred"


def test_blueprints_and_algorithms_are_kept_once(experiment: Experiment) -> None:
    """The population reads those of the environment, also once one of an earlier version was restored."""
    env, restored = small_env(experiment), small_env(experiment)
    for each in (env, restored):
        each.reset()
        each.step(waits(3, e0=GERMINATE))
    state = env.state_dict()
    assert "blueprint" not in state["population"]
    earlier = {"blueprint": torch.full((3, 3), -1), "algorithm": torch.zeros(3, 3, dtype=torch.long)}
    restored.load_state_dict(state | {"population": state["population"] | earlier})
    for each in (env, restored):
        assert each.population.state is each.state
        assert each.population.blueprint[0].tolist() == [-1, CONV_LIGHT, -1]
        each.state.assign(each.state.present, algorithm=int(BlendAlgorithm.MULTIPLY))
        assert each.population.algorithm[0].tolist() == [0, BlendAlgorithm.MULTIPLY, 0]
    assert_equal_steps(env.step(waits(3)), restored.step(waits(3)))


# ---------------------------------------------------------------------------------------------------- order of a step


def test_the_action_shapes_the_epoch_of_its_own_step(experiment: Experiment) -> None:
    env = small_env(experiment)
    env.reset()
    env.step(waits(3, e0=GERMINATE))
    scale = env.population.modules[1, CONV_LIGHT].program.layout.unflatten(
        env.population.modules[1, CONV_LIGHT].values.detach()
    )["scale"]
    assert env.state.age[0, 1] == 1
    assert scale.abs().min() > 0, "born at 0, so it was trained in the epoch it was born in"
    assert env.state.stage[0, 1] == Stage.TRAINING, "and moved on by one stage"
    for _ in range(4):
        env.step(waits(3))
    assert (env.state.stage[0, 1], float(env.state.alpha[0, 1])) == (Stage.HOLDING, 1.0)
    assert env.state.contribution_age[0, 1] == 0, "measured after this very epoch"
    env.step(waits(3, e0=action(Op.CULL, slot=1, alpha_speed=AlphaSpeed.INSTANT)))
    assert (1, CONV_LIGHT) not in env.population.modules, "freed, with its optimizer state"


def test_the_last_observation_is_the_one_before_any_reset(experiment: Experiment) -> None:
    env = small_env(experiment)
    results = play_episode(env, Eager(3))
    last = results[-1].observation
    kept = last.features.clone(), last.blueprint_index.clone(), last.masks.op.clone()
    assert results[-1].terminated.all()
    assert not any(result.terminated.any() for result in results[:-1])
    assert (last.features[:, BASE_INDEX["epoch"]] == 1).all()
    assert (last.blueprint_index >= 0).any()
    assert torch.equal(results[-1].epochs, torch.full((3,), env.num_epochs))
    fresh = env.reset()
    assert (fresh.features[:, BASE_INDEX["epoch"]] == 0).all()
    assert (fresh.blueprint_index == -1).all()
    assert torch.equal(last.features, kept[0])
    assert torch.equal(last.blueprint_index, kept[1])
    assert torch.equal(last.masks.op, kept[2])


def test_a_finished_environment_must_be_reset_before_it_steps(experiment: Experiment) -> None:
    env = small_env(experiment)
    play_episode(env, controller(experiment, "never"))
    with pytest.raises(AssertionError, match="must be reset"):
        env.step(waits(3))
    env.reset()
    env.step(waits(3))


# ------------------------------------------------------------------------------------------------- crashes and resets


@pytest.mark.parametrize("mapping", sorted(MAPPINGS))
@few(2)
def test_a_crash_ends_its_own_episode_and_leaves_the_others_bit_equal(mapping: str) -> None:
    experiment = small_experiment(f"env.mapping={mapping}", "env.num_epochs=6")
    script = [waits(3, e0=GERMINATE, e2=action(Op.GERMINATE, slot=0, blueprint=4, alpha_target=2)), *[waits(3)] * 5]
    healthy = replay(small_env(experiment), script)
    env = small_env(experiment)
    env.reset()
    broken = []
    for step, actions in enumerate(script):
        if step == 3:
            env.population.hosts.values.detach()[1, 5] = torch.nan
        broken.append(env.step(actions))
        if step == 3:
            assert broken[-1].terminated.tolist() == [False, True, False]
            assert [(episode.environment, episode.crashed) for episode in broken[-1].episodes] == [(1, True)]
            assert broken[-1].components["crash"].tolist() == [0.0, -env.settings.crash_penalty, 0.0]
            assert broken[-1].observation.features.isfinite().all()
            fresh = env.reset(broken[-1].terminated)
            assert torch.equal(fresh.features[[0, 2]], broken[-1].observation.features[[0, 2]])
    for a, b in zip(healthy, broken, strict=True):
        assert_equal_steps(a, b, torch.tensor([0, 2]))
    assert env.history.epoch.tolist() == [6, 2, 6]
    assert broken[-1].terminated.tolist() == [True, False, True]
    assert env.population.hosts.values.isfinite().all(), "nothing of the crash is left in the new host"
    assert broken[-1].reward[1] == 0, "which is the never-grown twin's equal again"


def test_a_broken_module_in_isolation_ends_no_episode_and_fails_its_gate(experiment: Experiment) -> None:
    env, bare = small_env(experiment), small_env(experiment)
    for each in (env, bare):
        each.reset()
    env.step(waits(3, e0=GERMINATE))
    bare.step(waits(3))
    env.population.modules[1, CONV_LIGHT].values.detach().fill_(torch.nan)
    for _ in range(3):
        result, untouched = env.step(waits(3)), bare.step(waits(3))
        assert not result.terminated.any()
        [record] = result.transitions.gates.records()
        assert (record.gate, record.passed) == ("G2", False)
        assert "finite" in record.reason
        assert (result.reward == 0).all()
        assert torch.equal(env.population.hosts.values, bare.population.hosts.values)
        assert torch.equal(result.accuracy, untouched.accuracy)


@NEEDS_FP16
def test_steps_skipped_by_loss_scaling_are_no_crash_and_count_as_unmeasured_at_the_gate() -> None:
    experiment = small_experiment("amp=fp16", "env.num_epochs=8", "env.steps_per_epoch=2")
    env = small_env(experiment)
    scales = env.population.scales
    assert scales is not None
    env.reset()
    env.step(waits(3, e0=GERMINATE, e1=GERMINATE))
    scales.scale[0, 1 + 1] = scales.scale[2, 0] = MAX_SCALE  # a module in isolation, and another environment's host
    probes = env.observation().features[2, -3 * NUM_PROBES :]
    result = env.step(waits(3))
    assert result.skipped_steps == 4
    assert result.non_finite == 0
    assert not result.terminated.any()
    gates = {(record.environment, record.gate): record.reason for record in result.transitions.gates.records()}
    assert gates == {(0, "G2"): REASONS[Reason.GRADIENT_UNMEASURED], (1, "G2"): REASONS[Reason.PASSED]}
    assert torch.equal(result.observation.features[2, -3 * NUM_PROBES :], probes), "the last ones measured"
    for _ in range(5):
        if env.state.stage[0, 1] == Stage.TRAINING:
            assert not env.step(waits(3)).terminated.any()
    assert env.state.stage[0, 1] != Stage.TRAINING, (
        "the scale came down, the gradient was measured, the gate let it pass"
    )


def test_weights_that_a_host_lacks_stay_zero_while_it_grows(experiment: Experiment) -> None:
    env = small_env(experiment, families=["starved_1", "centre_tap_all"])
    play_episode(env, Eager(5))
    hosts = env.population.hosts
    assert hosts.live is not None
    assert (hosts.live == 0).any()
    assert (hosts.values.detach()[hosts.live == 0] == 0).all()
    assert torch.equal(env.population.num_host_parameters(), hosts.live.sum(1).long())


# ------------------------------------------------------------------------------------------------------- observations


@pytest.mark.parametrize("num_slots", [1, slowly(2), 3, slowly(4), slowly(5), 8])
@few(1)
def test_observations_stay_in_range_for_every_number_of_slots(num_slots: int) -> None:
    experiment = small_experiment(
        "host=digits_deep",
        f"slots.num_slots={num_slots}",
        "slots.max_developing=null",
        f"slots.max_seeds={num_slots}",
        "env.num_epochs=7",
    )
    env, chooser = small_env(experiment, families=["starved_3", "centre_tap_1234567", "intact"]), Eager(num_slots)
    table = feature_table(num_slots, PROBE_NAMES)
    low, high = (torch.tensor([getattr(feature, bound) for feature in table]) for bound in ("low", "high"))
    seen = [env.reset().features]
    seen += [result.observation.features for result in play_episode(env, chooser)]
    features = torch.stack(seen)
    assert features.shape == (8, 3, len(table))
    assert ((features >= low) & (features <= high)).all()
    assert features.abs().max() <= 2
    assert (env.population.blueprint >= 0).any()
    moved = {feature.name for feature in table if features[..., feature.index].unique().numel() > 1}
    expected = {f"slot{slot}.{name}" for slot in range(num_slots) for name in ("effective_rank", "log_gradient_norm")}
    assert expected <= moved


def test_probes_name_the_starved_place_from_the_reset_on() -> None:
    """Two of eight channels are alive in a starved block, so three quarters are dead at its slot, and there only."""
    env = small_env(small_experiment("env.num_epochs=3", "instances.alive_channels=2"), families=["starved_1"])
    dead = [feature.index for feature in feature_table(3, PROBE_NAMES) if feature.name.endswith("dead_channels")]
    observation = env.reset()
    for _ in range(3):
        assert observation.features[:, dead].tolist() == [[0.0, 0.75, 0.0]] * 3
        observation = env.step(waits(3)).observation


@pytest.mark.parametrize("names", [("dead_channels",), ("log_first_order_gain", "effective_rank"), PROBE_NAMES])
def test_chosen_probes_are_the_columns_of_those_names_and_nothing_else_changes(names: tuple[str, ...]) -> None:
    """Columns are in the order of the table, whatever the requested order."""
    full = small_env(small_experiment("env.num_epochs=2"))
    some = small_env(small_experiment("env.num_epochs=2", f"observation.slot_probes=[{','.join(names)}]"))
    expected, table = feature_table(3, PROBE_NAMES), feature_table(3, names)
    index = {feature.name: feature.index for feature in expected}
    columns = [index[feature.name] for feature in table]
    assert len(table) == num_features(3, len(names))
    assert columns == sorted(columns)
    for ours, theirs in [(some.reset(), full.reset()), (some.step(waits(3)), full.step(waits(3)))]:
        ours, theirs = (getattr(found, "observation", found).features for found in (ours, theirs))
        assert torch.equal(ours, theirs[:, columns])


@pytest.mark.parametrize("every", [3, 50])
def test_probes_that_are_measured_less_often_stay_as_they_were_and_nothing_else_changes(
    every: int,
) -> None:
    words = "env.num_epochs=8"
    full, some = (small_env(small_experiment(words, *more)) for more in ([], [f"observation.probe_every={every}"]))
    seen = [[env.reset().features] for env in (full, some)]
    asked = []
    for epoch in range(8):
        seen[0].append(full.step(waits(3)).observation.features)
        asked.append(bool(some.probes_due()))
        seen[1].append(some.step(waits(3)).observation.features)
        last = (epoch + 1) // every * every
        columns = slice(-3 * NUM_PROBES, None)
        assert torch.equal(seen[1][-1][:, columns], seen[0][last][:, columns])
        assert torch.equal(seen[1][-1][:, : columns.start], seen[0][-1][:, : columns.start])
    assert asked == [(epoch + 1) % every == 0 for epoch in range(8)]


def test_probes_at_the_reset_see_the_labels_that_the_host_will_be_told() -> None:
    env = small_env(small_experiment("env.num_epochs=2"), families=["label_noise"])
    features = env.reset().features[:, -3 * NUM_PROBES :].reshape(3, 3, NUM_PROBES)
    train, batch = env.loader.task.train, env.loader.training.batch_size
    index = env.loader.order(env.instances, [0] * 3)[:, :batch]
    told = torch.stack([env.loader.data(instance).train_targets for instance in env.instances]).gather(1, index)
    assert torch.equal(features, probe_hosts(env.population, train.inputs[index], told))
    assert not torch.equal(features, probe_hosts(env.population, train.inputs[index], train.targets[index]))


def test_without_probes_the_layout_is_the_plain_one() -> None:
    experiment = small_experiment("observation.slot_probes=[]", "env.num_epochs=2")
    env = small_env(experiment)
    assert env.reset().features.shape == (3, num_features(3))
    assert env.step(waits(3)).observation.features.shape == (3, num_features(3))


def test_reports_are_named_in_canonical_order_and_agree_with_the_population(experiment: Experiment) -> None:
    env = small_env(experiment)
    env.reset()
    for actions in (waits(3, e0=GERMINATE), waits(3)):
        env.step(actions)
    reports = env.reports(0)
    assert tuple(reports) == env.slot_ids
    report = reports[env.slot_ids[1]]
    assert report.stage is Stage.BLENDING
    assert report.seed_params == int(env.population.num_parameters()[0, 1]) == 600
    assert report.host_params == int(env.population.num_host_parameters()[0])


def test_test_accuracy_is_measured_only_when_asked_for(experiment: Experiment) -> None:
    quiet = play_episode(small_env(experiment), controller(experiment, "never"))[-1].episodes
    asked = small_env(experiment, measure_test=True)
    loud = play_episode(asked, controller(experiment, "never"))[-1].episodes
    assert all(episode.test_accuracy is None for episode in quiet)
    assert asked.rewarder.twins is not None
    assert [episode.test_accuracy for episode in loud] == [
        asked.rewarder.twins[episode.instance].test_accuracy for episode in loud
    ]
