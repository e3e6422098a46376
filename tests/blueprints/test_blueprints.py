"""Every blueprint is the identity at birth and yet alive, under every blend algorithm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import undone
from torch import nn

from esper.blueprints import BLUEPRINTS, blueprint_ids, build_blueprint, compatible, noop, register_blueprint
from esper.growth.actions import BLUEPRINT_IDS, BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.hosts.init import reset_parameters
from esper.runtime.rng import generator

ALGORITHMS = list(BlendAlgorithm)
CNN_IDS = list(BLUEPRINTS["cnn"])
LEAVES = (nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.AdaptiveAvgPool2d)


@pytest.fixture
def empty_extension() -> Iterator[None]:
    """Undo registrations after a test."""
    with undone():
        yield


def newborn(blueprint_id: str, channels: int, algorithm: BlendAlgorithm, alpha: float = 0.5) -> BlendedModule:
    gate = Gate(channels) if algorithm is BlendAlgorithm.GATE else None
    module = BlendedModule(build_blueprint("cnn", blueprint_id, channels), algorithm, gate, alpha)
    reset_parameters(module, generator("module", blueprint_id))
    return module


def feature(channels: int = 8) -> torch.Tensor:
    return torch.randn(16, channels, 4, 4, generator=generator("feature")).relu()


def test_every_built_in_blueprint_has_a_family_and_an_index() -> None:
    assert {"noop", *(name for table in BLUEPRINTS.values() for name in table)} == set(BLUEPRINT_IDS)


@pytest.mark.parametrize("blueprint_id", CNN_IDS)
def test_building_draws_nothing_from_the_global_generator(blueprint_id: str) -> None:
    """Drawing would change the dropout masks of users who grow their own network."""
    before = torch.get_rng_state()
    build_blueprint("cnn", blueprint_id, 8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", CNN_IDS)
@pytest.mark.parametrize("channels", [1, 3, 8, 36])
def test_identity_at_birth(blueprint_id: str, algorithm: BlendAlgorithm, channels: int) -> None:
    x = torch.randn(4, channels, 4, 4)
    assert torch.equal(newborn(blueprint_id, channels, algorithm)(x), x)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", CNN_IDS)
def test_non_zero_gradient_at_birth(blueprint_id: str, algorithm: BlendAlgorithm) -> None:
    module = newborn(blueprint_id, 8, algorithm)
    x = feature()
    (module(x) * torch.randn(x.shape, generator=generator("upstream"))).sum().backward()
    norm = sum(float(p.grad.square().sum()) for p in module.body.parameters() if p.grad is not None) ** 0.5
    assert norm > 1e-3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", CNN_IDS)
def test_every_parameter_moves_within_three_steps(blueprint_id: str, algorithm: BlendAlgorithm) -> None:
    module = newborn(blueprint_id, 8, algorithm)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    x = feature()
    target = torch.randn(x.shape, generator=generator("target"))
    for _ in range(3):
        optimizer.zero_grad()
        (module(x) - target).square().mean().backward()
        optimizer.step()
    still = [name for name, value in module.named_parameters() if torch.equal(value, before[name])]
    assert still == []


@pytest.mark.parametrize("blueprint_id", CNN_IDS)
@pytest.mark.parametrize(("channels", "size"), [(8, 1), (8, 8), (3, 4)])
def test_shape_is_kept_and_training_changes_the_function(blueprint_id: str, channels: int, size: int) -> None:
    module = build_blueprint("cnn", blueprint_id, channels)
    reset_parameters(module, generator("module"))
    x = torch.randn(4, channels, size, size)
    with torch.no_grad():
        module.scale.fill_(1.0)
    assert module(x).shape == x.shape
    assert not torch.equal(module(x), x)


@pytest.mark.parametrize("blueprint_id", CNN_IDS)
def test_traceable_from_plain_layers(blueprint_id: str) -> None:
    """Stacking strategies rewrite the graph, so it may hold only layers that they know."""
    module = build_blueprint("cnn", blueprint_id, 8)
    graph = torch.fx.symbolic_trace(module)
    leaves = [graph.get_submodule(str(node.target)) for node in graph.graph.nodes if node.op == "call_module"]
    assert all(isinstance(leaf, LEAVES) for leaf in leaves)
    assert {node.op for node in graph.graph.nodes} <= {
        "placeholder",
        "call_module",
        "get_attr",
        "call_function",
        "output",
    }
    assert torch.equal(graph(feature()), module(feature()))


@pytest.mark.parametrize("blueprint_id", CNN_IDS)
def test_samples_do_not_mix(blueprint_id: str) -> None:
    module = newborn(blueprint_id, 8, BlendAlgorithm.ADD, alpha=1.0)
    with torch.no_grad():
        module.body.scale.fill_(0.5)
    x = feature()
    torch.testing.assert_close(module(x)[:1], module(x[:1]))


@pytest.mark.parametrize(
    ("blueprint_id", "count"),
    [
        ("norm", 24),  # gamma, beta, scale
        ("attention", 84),  # 8·4 + 4, 4·8 + 8, scale 8
        ("depthwise", 160),  # 72 + 64 + 16 + 8
        ("bottleneck", 744),  # 64 + 16 + 576 + 16 + 64 + 8
        ("conv_small", 88),  # 64 + 16 + 8
        ("conv_light", 600),  # 576 + 16 + 8
        ("conv_heavy", 1192),  # 2 (576 + 16) + 8
    ],
)
def test_parameter_counts_at_eight_channels(blueprint_id: str, count: int) -> None:
    assert sum(p.numel() for p in build_blueprint("cnn", blueprint_id, 8).parameters()) == count


def test_noop_has_no_parameters_and_is_masked_unless_registered(empty_extension: None) -> None:
    module = noop.build(8)
    assert list(module.parameters()) == []
    assert torch.equal(module(feature()), feature())
    index = blueprint_ids().index("noop")
    assert not compatible([("cnn", 8)])[0, index]
    register_blueprint("cnn", "noop", noop.build)
    assert compatible([("cnn", 8)])[0, index]


def test_compatible_depends_on_the_width_of_each_slot(empty_extension: None) -> None:
    def even_only(channels: int) -> nn.Module:
        if channels % 2:
            raise ValueError(f"channels={channels} must be even")
        return nn.Conv2d(channels, channels, 1, groups=2)

    register_blueprint("cnn", "my_package.even", even_only)
    fits = compatible([("cnn", 8), ("cnn", 7)])
    assert fits.shape == (2, len(BLUEPRINT_IDS) + 1)
    assert blueprint_ids()[-1] == "my_package.even"
    assert fits[:, -1].tolist() == [True, False]
    assert [blueprint_ids()[i] for i in fits[1].nonzero().flatten().tolist()] == [
        name for name in BLUEPRINT_IDS if name in CNN_IDS
    ]


def test_a_blueprint_that_changes_the_shape_is_not_compatible(empty_extension: None) -> None:
    register_blueprint("cnn", "shrinks", lambda channels: nn.AvgPool2d(2))
    assert not compatible([("cnn", 8)])[0, -1]


def test_the_shape_probe_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    compatible([("cnn", 8), ("cnn", 16), ("transformer", 8)])
    assert torch.equal(before, torch.get_rng_state())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"cnn blueprint: unknown 'conv_huge' \(did .*\); choose from conv_light"):
        build_blueprint("cnn", "conv_huge", 8)
    with pytest.raises(ValueError, match=r"host family 'rnn'; known families: cnn, transformer, mlp"):
        build_blueprint("rnn", "norm", 8)
    with pytest.raises(ValueError, match=r"host family 'rnn'"):
        compatible([("rnn", 8)])


def test_an_id_is_registered_once_per_family() -> None:
    register_blueprint("cnn", "norm", BLUEPRINTS["cnn"]["norm"])
    with pytest.raises(ValueError, match="there is a cnn blueprint 'norm' already"):
        register_blueprint("cnn", "norm", noop.build)
