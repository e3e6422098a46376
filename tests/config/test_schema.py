"""Dataclasses: every field is documented, and a value that cannot work is refused by its full key."""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import esper.config.growth
import esper.config.hosts
import esper.config.learning
import esper.config.root
import esper.config.wandb
from esper.config import Config, UsageError, compose, load, to_plain
from esper.config.identity import flat
from esper.config.learning import EntropyMultipliers
from esper.growth.actions import HEADS
from tests.tiers import few

MODULES = (
    esper.config.growth,
    esper.config.hosts,
    esper.config.learning,
    esper.config.root,
    esper.config.wandb,
)


DEFAULTS = OmegaConf.structured(Config)


def schema_classes() -> list[ast.ClassDef]:
    trees = [ast.parse(Path(module.__file__).read_text()) for module in MODULES]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return [node for node in classes if any(isinstance(item, ast.AnnAssign) for item in node.body)]


@pytest.mark.parametrize("node", schema_classes(), ids=lambda node: node.name)
def test_every_field_is_followed_by_its_docstring(node: ast.ClassDef) -> None:
    assert ast.get_docstring(node)
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            assert isinstance(after, ast.Expr), f"{node.name}.{ast.unparse(item.target)} has no docstring"
            assert isinstance(after.value, ast.Constant)
            assert str(after.value.value).strip()


def test_all_sections_are_covered_by_the_documentation_test() -> None:
    sections = {type(getattr(Config(), item.name)).__name__ for item in dataclasses.fields(Config)}
    assert {name for name in sections if name.endswith("Config")} <= {node.name for node in schema_classes()}


def test_entropy_multipliers_are_the_action_heads() -> None:
    assert tuple(item.name for item in dataclasses.fields(EntropyMultipliers)) == HEADS


def test_yaml_without_a_preset_adds_nothing_to_the_dataclass_defaults() -> None:
    composed, bare = to_plain(compose()), to_plain(Config())
    composed.pop("name"), bare.pop("name")
    assert composed["wandb"].pop("group") == "digits", "what runs are grouped by is made of their names"
    del bare["wandb"]["group"]
    assert composed == bare


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed must be at least 0, got -1"),
        ("num_threads=-1", "num_threads must be at least 0, got -1"),
        ("devices=gpu", "devices must be auto, cpu, the index of a CUDA device, or a list such as"),
        ("devices=[]", "got an empty list"),
        ("devices=true", "got True"),
        ("devices=[auto,cpu]", "got [auto,cpu]"),
        ("name=a/b", "name must be a folder name without '/', got 'a/b'"),
        ("task.batch_size=0", "task.batch_size must be at least 1, got 0"),
        ("task.num_val=0", "task.num_val must be at least 1, got 0"),
        ("task.max_samples=0", "task.max_samples must be at least 1, got 0"),
        ("task.vocab_size=256", "task.vocab_size must be at least 258, got 256"),
        ("task.crop=-1", "task.crop must be at least 0, got -1"),
        ("host.widths=[]", "host.widths must name at least one block, got []"),
        ("host.widths=[8,8]", "host.kernel_sizes must have one entry per block of host.widths (2), got [3, 3, 3]"),
        ("host.kernel_sizes=[3,2,3]", "host.kernel_sizes[1] must be odd, got 2"),
        ("host.norm_groups=3", "host.norm_groups=3 must divide host.widths[0]=8"),
        ("host.place_rows=[2]", "host.place_rows must be between 0 and 1, got 2"),
        ("host.place_rows=[0,0]", "host.place_rows names 0 more than once"),
        ("host.lr=0", "host.lr must be above 0, got 0.0"),
        ("host.lr=inf", "host.lr must be above 0, got inf"),
        ("instances.families.intact=-1", "instances.families.intact must be at least 0, got -1.0"),
        ("instances.num_few_classes=1", "instances.num_few_classes must be at least 2, got 1"),
        ("instances.alive_channels=9", "instances.alive_channels must be at most 8 (min(host.widths)), got 9"),
        ("env.num_epochs=0", "env.num_epochs must be at least 1, got 0"),
        ("slots.num_slots=0", "slots.num_slots must be at least 1, got 0"),
        ("slots.max_seeds=0", "slots.max_seeds must be at least 1, got 0"),
        ("slots.min_gradient_health=1.5", "slots.min_gradient_health must be between 0 and 1, got 1.5"),
        ("slots.vanish_norm=1e4", "slots.vanish_norm=10000.0 must be below slots.explode_norm=1000.0"),
        ("slots.ids=[r0c0]", "set slots.num_slots=1"),
        ("slots.ids=[r0c0,r0c0,r0c1]", "slots.ids names r0c0 more than once"),
        ("observation.slot_probes=[a,b,a]", "observation.slot_probes names a more than once"),
        ("observation.probe_every=0", "observation.probe_every must be at least 1, got 0"),
        ("observation.probe_every=2", "observation.probe_every=2 needs slot probes: observation.slot_probes=[]"),
        ("observation.contribution_decay=2", "observation.contribution_decay must be between 0 and 1, got 2.0"),
        ("counterfactual.every=0", "counterfactual.every must be at least 1, got 0"),
        ("counterfactual.pairs_every=-1", "counterfactual.pairs_every must be at least 0, got -1"),
        ("counterfactual.shapley_permutations=-1", "counterfactual.shapley_permutations must be at least 0, got -1"),
        ("counterfactual.max_configurations=0", "counterfactual.max_configurations must be at least 1, got 0"),
        ("policy.lstm_dim=0", "policy.lstm_dim must be at least 1, got 0"),
        ("policy.blueprint_head_dims=[]", "policy.blueprint_head_dims must name at least one width, got []"),
        ("ppo.gamma=1.01", "ppo.gamma must be between 0 and 1, got 1.01"),
        ("ppo.gamma=nan", "ppo.gamma must be between 0 and 1, got nan"),
        ("ppo.target_kl=0", "ppo.target_kl must be above 0, got 0.0"),
        ("ppo.entropy_multipliers.slot=-1", "ppo.entropy_multipliers.slot must be at least 0, got -1.0"),
        ("a2c.gae_lambda=2", "a2c.gae_lambda must be between 0 and 1, got 2.0"),
        ("a2c.lr=0", "a2c.lr must be above 0, got 0.0"),
        ("imitation.lr=0", "imitation.lr must be above 0, got 0.0"),
        ("imitation.iterations=0", "imitation.iterations must be at least 1, got 0"),
        ("imitation.ent_coef=-1", "imitation.ent_coef must be at least 0, got -1.0"),
        ("ppo.num_minibatches=64", "ppo.num_minibatches must be at most 32 (trainer.num_envs), got 64"),
        ("reward.scale=0", "reward.scale must be above 0, got 0.0"),
        ("trainer.num_envs=0", "trainer.num_envs must be at least 1, got 0"),
        ("trainer.num_steps=0", "trainer.num_steps must be at least 1, got 0"),
        ("evaluation.num_hosts=65", "evaluation.num_hosts must be at most 64 (instances.num_held_out), got 65"),
        ("evaluation.controllers=[]", "evaluation.controllers must not be empty"),
        ("evaluation.schedule.first.slot=3", "evaluation.schedule.first.slot must be at most 2 (slots.num_slots - 1)"),
        ("evaluation.schedule.first.epoch=25", "evaluation.schedule.first.epoch must be at most 24 (env.num_epochs"),
        ("instances.families.starved_9=1", "'starved_9' names block 9; the host has blocks 0 to 2"),
        ("instances.families.odd=1", "instances.families.odd: unknown host fault 'odd'; known: intact"),
        (
            "instances.families.narrow_9=1",
            "channels of instances.families.narrow_9 must be at most 8 (min(host.widths))",
        ),
        (
            "instances.held_out_families.odd=1",
            "instances.held_out_families.odd: unknown host fault 'odd'; known: intact",
        ),
        ("instances.held_out_families.intact=-1", "instances.held_out_families.intact must be at least 0, got -1.0"),
        (
            "instances.held_out_families.intact=0",
            "instances.held_out_families must give a weight above 0 to at least one",
        ),
        ("instances.data_fraction=0", "instances.data_fraction must be above 0, got 0.0"),
        ("instances.label_noise_rate=1.5", "instances.label_noise_rate must be at most 1 (all of them), got 1.5"),
        ("task.batch_size=1000000001", "task.batch_size must be at most 1000000, got 1000000001"),
    ],
)
@few(30)
def test_impossible_values_are_refused_by_key_and_value(override: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        load(OmegaConf.merge(DEFAULTS, OmegaConf.from_dotlist([override])), Config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


HOSTS = [esper.config.hosts.CNNConfig, esper.config.hosts.TransformerConfig]


def counted(plain: dict[str, Any], count: int) -> dict[str, Any]:
    """Replace integers, alone or first in a list, by another one, by key."""
    found = {}
    for key, value in flat(plain).items():
        if type(value) is int:
            found[key] = count
        elif isinstance(value, list) and value and type(value[0]) is int:
            found[key] = [count, *value[1:]]
    return found


@pytest.mark.parametrize("count", [10**20, 10**400], ids=["20 digits", "400 digits"])
@few(1)
def test_counts_that_no_machine_has_room_or_time_for_are_refused_by_key(count: int) -> None:
    changes = {key: value for key, value in counted(to_plain(Config()), count).items() if not key.startswith("host.")}
    del changes["observation.num_blueprints"]  # which only a build can check: plugins may add some
    assert len(changes) > 30
    for key, value in changes.items():
        cfg = copy.deepcopy(DEFAULTS)
        OmegaConf.update(cfg, key, value)
        with pytest.raises(ValueError, match=rf"^{re.escape(key)}\b.*{count}"):
            load(cfg, Config)


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_that_no_machine_has_room_for_are_refused_by_key(host: type[Any]) -> None:
    for key, value in counted(dataclasses.asdict(host()), 10**20).items():
        with pytest.raises(ValueError, match=rf"^host\.({key}|norm_groups)\b.*{10**20}"):
            host(**{key: value})


def test_a_learning_rate_that_ends_before_the_run_is_a_contradiction() -> None:
    compose("ppo.anneal_lr=true", "trainer.num_iterations=30")
    with pytest.raises(UsageError, match=r"trainer.num_iterations must be at most 30 \(ppo.anneal_iterations"):
        compose("ppo.anneal_lr=true", "trainer.num_iterations=31")


def test_a_cap_too_low_for_one_permutation_is_a_contradiction() -> None:
    compose("counterfactual.max_configurations=2")
    compose("counterfactual.max_configurations=3", "counterfactual.shapley_permutations=1")
    with pytest.raises(
        UsageError, match=r"slots.num_slots must be at most 2 \(counterfactual.max_configurations.*got 3"
    ):
        compose("counterfactual.max_configurations=2", "counterfactual.shapley_permutations=1")


def test_unset_limits_follow_what_they_depend_on() -> None:
    config = compose("slots.num_slots=2", "env.num_epochs=7")
    assert (config.slots.max_seeds, config.slots.max_developing, config.trainer.num_steps) == (2, 2, 7)
    config = compose("slots.max_seeds=1", "trainer.num_steps=3")
    assert (config.slots.max_seeds, config.slots.max_developing, config.trainer.num_steps) == (1, 3, 3)
