"""One schema per family of hosts: the group chooses it, and wrong keys are answered with the right ones."""

from __future__ import annotations

import pytest
import torch

from esper.config import CONF_DIR, Config, compose, from_yaml, to_yaml
from esper.config.errors import explain
from esper.config.hosts import HOST_SCHEMAS, CustomConfig, TransformerConfig
from esper.experiment.build import build_experiment
from esper.experiment.preflight import preflight
from esper.growth.actions import NUM_HEADS
from esper.hosts import HOSTS, build_host
from esper.runtime.rng import generator
from tests.tiers import few

TASK_OF = {
    "cifar10": "synthetic_images",
    "cifar10_deep": "synthetic_images",
    "fashion_mnist": "synthetic_images",
    "fashion_small": "synthetic_images",
    "digits": "digits",
    "digits_deep": "digits",
    "textbook": "synthetic_text",
    "tinystories": "synthetic_text",
}
"""A task on which each host of the group can be tried without downloads."""


def test_every_family_has_a_schema_a_builder_and_a_kind_of_task() -> None:
    assert set(HOST_SCHEMAS) == set(HOSTS)
    assert all(schema(**_needed(name)).name == name for name, schema in HOST_SCHEMAS.items())


def _needed(name: str) -> dict[str, object]:
    return {"target": "a:b", "slots": ["c"]} if name == "custom" else {}


@pytest.mark.slow
@pytest.mark.parametrize("host", sorted(path.stem for path in (CONF_DIR / "host").glob("*.yaml")))
def test_every_host_trains_one_step_with_something_growing(host: str) -> None:
    config = compose(
        f"host={host}",
        f"task.name={TASK_OF[host]}",
        "task.batch_size=4",
        "task.max_samples=16",
        "env.mapping=loop",
        "env.num_epochs=1",
        "env.steps_per_epoch=1",
        "observation.slot_probes=[dead_channels,effective_rank,log_gradient_norm,log_first_order_gain]",
    )
    preflight(config)
    experiment = build_experiment(config)
    pool = experiment.pool("train", 2)
    env = experiment.env(range(2), pool, experiment.twins(2, lambda done, total: None), run_seed=0, measure_test=True)
    env.reset()
    env.plant({1: [(0, int(experiment.compatible[0].long().argmax()))]})
    result = env.step(torch.zeros(2, NUM_HEADS, dtype=torch.int64))
    assert result.reward.isfinite().all()
    assert result.reward[0] == 0
    assert result.observation.features.isfinite().all()
    for episode in result.episodes:
        assert (episode.test_bits is not None) == (TASK_OF[host] == "synthetic_text")


def test_the_group_chooses_the_schema() -> None:
    assert compose("host=textbook", "host.num_layers=3", "host.lr=0.005").host == TransformerConfig(
        num_layers=3, width=32, num_heads=4, mlp_width=64, lr=0.005
    )
    custom = compose("host=custom", "host.target=a:b", "host.slots=[x,y]", "+host.arguments={depth: 2}")
    assert custom.host == CustomConfig(target="a:b", slots=["x", "y"], arguments={"depth": 2})
    assert from_yaml(to_yaml(custom), Config) == custom


CHANGES = {"num_layers": 1, "width": 24, "num_heads": 2, "mlp_width": 20, "place_rows": [1]}


def test_every_number_of_a_transformer_changes_the_host() -> None:
    assert set(CHANGES) == set(TransformerConfig().shape())
    tokens = torch.arange(6).view(1, 6)

    def built(**changes: object) -> tuple[tuple[str, ...], torch.Tensor]:
        shape = TransformerConfig(width=16, mlp_width=16).shape() | changes
        host = build_host("transformer", context_length=6, num_classes=7, **shape)
        host.reset(generator("host"))
        return host.slot_ids, host(tokens)

    slot_ids, logits = built()
    for key, value in CHANGES.items():
        other_ids, other = built(**{key: value})
        assert other_ids != slot_ids or not torch.equal(other, logits), key


def test_families_to_draw_from_are_those_that_the_host_can_have() -> None:
    assert set(compose("host=cnn").instances.families) == {
        "intact",
        "starved_0",
        "starved_1",
        "starved_2",
        "centre_tap_all",
        "few_classes",
    }
    transformer = compose("host=transformer", "host.num_layers=1").instances.families
    assert set(transformer) == {"intact", "starved_0", "unmixed_all", "few_samples"}
    assert set(compose("host=transformer", "+instances.families={intact: 1}").instances.families) == {"intact"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "host=transformer host.widths=[3]",
            "unknown key 'host.widths' (did you mean 'width'?); keys of host: name,",
        ),
        ("host=transformer +host.widths=[3]", "num_layers, width, num_heads, mlp_width, place_rows"),
        ("host.num_layers=3", "unknown key 'host.num_layers'; keys of host: name, lr, max_grad_norm, widths"),
        ("host=custom host.width=3", "keys of host: name, lr, max_grad_norm, target, arguments, slots"),
        ("host=custom", "no value for host.target: use host.target=<value>"),
        ("host=custom host.target=a:b", "no value for host.slots: use host.slots=<value>"),
        ("host=custom host.target=a:b host.slots=[]", "host.slots must not be empty"),
        ("host=resnet", "host: unknown 'resnet'; choose from"),
        ("host.name=cn", "host.name: unknown 'cn' (did you mean 'cnn'?); choose from cnn, transformer, custom"),
        ("host=transformer host.name=cnn", "these are the keys of transformer: choose with host=cnn"),
        ("host=transformer host.width=30", "host.num_heads=4 must divide host.width=30"),
        ("host=transformer host.num_layers=0", "host.num_layers must be at least 1, got 0"),
        ("host=transformer host.place_rows=[2]", "host.place_rows must be between 0 and 1, got 2"),
        (
            "host=transformer",
            "reads tokens, but task digits has images: choose host=cnn or host=custom",
        ),
        (
            "task.name=synthetic_text",
            "reads images, but task synthetic_text has tokens: choose host=transformer",
        ),
        ("host=transformer +instances.families={centre_tap_all: 1}", "transformer hosts have no 'centre_tap'"),
        ("host=transformer +instances.families={starved_2: 1}", "names block 2; the host has blocks 0 to 1"),
        ("host=transformer instances.alive_channels=200", "must be at most 128 (host.mlp_width), got 200"),
        (
            "host=transformer task.name=synthetic_text host.width=36 host.num_heads=6 slots.blueprints=[conv_light]",
            "'conv_light' does not fit this transformer host; choose from attention, norm, lora, lora_large",
        ),
        (
            "host=transformer task.name=synthetic_text host.width=30 host.num_heads=5 slots.blueprints=[attention]",
            "does not fit this transformer host (attention of 4 heads needs a width that 4 divides, got 30)",
        ),
        ("host=custom host.target=nowhere:b host.slots=[x]", "host.target: cannot import 'nowhere'"),
    ],
)
@few(8)
def test_what_does_not_fit_is_answered_with_what_does(words: str, message: str) -> None:
    with pytest.raises(Exception) as caught:
        preflight(compose(*_split(words)))
    assert message in explain(caught.value, Config)


def _split(words: str) -> list[str]:
    return words.replace(": ", ":").split()
