"""The transformer: causal whatever grows in it, unsure at birth, whole by segments, and starved as its family says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import mask_host
from torch import Tensor, nn

from esper.blueprints import BLUEPRINTS, build_blueprint, compatible
from esper.growth.actions import BLUEPRINT_IDS, BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.growth.layouts import Layout
from esper.hosts import Place, TransformerHost, build_host, check_fault, fault_mask, reset_parameters
from esper.hosts.attention import CausalAttention, sliding_window
from esper.runtime.rng import generator

ALGORITHMS = list(BlendAlgorithm)
IDS = list(BLUEPRINTS["transformer"])
VOCABULARY, CONTEXT, WIDTH = 64, 24, 16
SHAPE: dict[str, Any] = {"num_layers": 2, "width": WIDTH, "num_heads": 4, "mlp_width": 32}


def text_host(stream: int = 0, **changes: Any) -> TransformerHost:
    arguments = {"context_length": CONTEXT, "num_classes": VOCABULARY, **SHAPE, **changes}
    host = build_host("transformer", **arguments)
    host.reset(generator("host", stream))
    assert isinstance(host, TransformerHost)
    return host


def tokens(count: int = 4, length: int = CONTEXT) -> Tensor:
    return torch.randint(VOCABULARY, (count, length), generator=generator("tokens"))


def grown(blueprint_id: str, algorithm: BlendAlgorithm, alpha: float = 0.6, stirred: bool = True) -> BlendedModule:
    """A module with its blend; ``stirred`` as if it had been trained."""
    gate = Gate(WIDTH, Layout.SEQUENCE) if algorithm is BlendAlgorithm.GATE else None
    module = BlendedModule(build_blueprint("transformer", blueprint_id, WIDTH), algorithm, gate, alpha)
    reset_parameters(module, generator("module", blueprint_id))
    if stirred:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator("stir")))
    return module


def test_the_seven_blueprints_of_transformers_are_offered() -> None:
    assert set(IDS) == {"norm", "lora", "lora_large", "attention", "flex_attention", "mlp_small", "mlp"}
    assert set(IDS) <= set(BLUEPRINT_IDS)


def test_families_see_only_their_own_blueprints() -> None:
    offered = compatible([("cnn", 16), ("transformer", 16)])
    names = [[BLUEPRINT_IDS[i] for i in row.nonzero().flatten().tolist()] for row in offered]
    assert set(names[1]) == set(IDS)
    assert set(names[0]) == set(BLUEPRINTS["cnn"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", IDS)
def test_identity_at_birth_with_a_gradient(blueprint_id: str, algorithm: BlendAlgorithm) -> None:
    module = grown(blueprint_id, algorithm, stirred=False)
    x = torch.randn(3, CONTEXT, WIDTH, generator=generator("feature"))
    out = module(x)
    assert torch.equal(out, x)
    (out * torch.randn(x.shape, generator=generator("upstream"))).sum().backward()
    norm = sum(float(p.grad.square().sum()) for p in module.body.parameters() if p.grad is not None) ** 0.5
    assert norm > 1e-3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", IDS)
def test_every_parameter_moves_within_three_steps(blueprint_id: str, algorithm: BlendAlgorithm) -> None:
    module = grown(blueprint_id, algorithm, stirred=False)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    x = torch.randn(3, CONTEXT, WIDTH, generator=generator("feature"))
    target = torch.randn(x.shape, generator=generator("target"))
    for _ in range(3):
        optimizer.zero_grad()
        (module(x) - target).square().mean().backward()
        optimizer.step()
    assert [name for name, value in module.named_parameters() if torch.equal(value, before[name])] == []


@pytest.mark.parametrize("place", ["r0c0", "r1c0", "r1c1"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("blueprint_id", IDS)
def test_a_later_token_changes_no_earlier_output(blueprint_id: str, algorithm: BlendAlgorithm, place: str) -> None:
    host = text_host()
    host.attach(place, grown(blueprint_id, algorithm))
    before = tokens()
    after = before.clone()
    after[:, 10] = (after[:, 10] + 1) % VOCABULARY
    moved = (host(before) - host(after)).detach().abs().amax(dim=(0, 2))
    assert moved[:10].max() == 0
    assert moved[10:].min() > 0


def test_an_attention_reads_its_window_and_no_further() -> None:
    qkv = torch.randn(2, CONTEXT, 3 * WIDTH, generator=generator("qkv"))
    changed = qkv.clone()
    changed[:, 5] += 1.0
    for window, reach in ((4, 4), (None, CONTEXT - 5)):
        attention = CausalAttention(WIDTH, 4, window)
        moved = (attention(qkv) - attention(changed)).abs().amax(dim=(0, 2)) > 0
        assert moved.nonzero().flatten().tolist() == list(range(5, 5 + reach))
    assert sliding_window(3, 2, torch.device("cpu")).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
    ]


@pytest.mark.parametrize("window", [None, 3])
def test_attention_equals_a_softmax_by_hand(window: int | None) -> None:
    qkv = torch.randn(2, 6, 3 * WIDTH, generator=generator("qkv"), dtype=torch.float64)
    q, k, v = (part.unflatten(2, (4, 4)).transpose(1, 2) for part in qkv.split(WIDTH, dim=2))
    scores = q @ k.transpose(2, 3) / 2.0
    age = torch.arange(6)[:, None] - torch.arange(6)[None, :]
    hidden = (age < 0) | (age >= (window or 6))
    expected = scores.masked_fill(hidden, -math.inf).softmax(dim=3) @ v
    torch.testing.assert_close(CausalAttention(WIDTH, 4, window)(qkv), expected.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("vocabulary", [64, 256, 2048])
@pytest.mark.parametrize("shape", [{}, {"num_layers": 6, "width": 64, "mlp_width": 256}])
def test_a_new_host_is_unsure(vocabulary: int, shape: dict[str, int]) -> None:
    host = text_host(num_classes=vocabulary, **shape)
    text = torch.randint(vocabulary, (16, CONTEXT + 1), generator=generator("text"))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(host(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert abs(float(loss) / math.log(vocabulary) - 1) < 0.05


def test_places_follow_attention_and_mlp() -> None:
    host = text_host()
    assert host.places == tuple(Place(f"r{row}c{layer}", WIDTH, "transformer") for layer in (0, 1) for row in (0, 1))
    assert text_host(place_rows=(1,)).slot_ids == ("r1c0", "r1c1")
    x = tokens()
    assert torch.equal(text_host(place_rows=(1,))(x), host(x))
    assert host(x).shape == (4, CONTEXT, VOCABULARY)
    assert host(x[:, :7]).shape == (4, 7, VOCABULARY)


def test_whole_equals_segments_exactly_with_and_without_modules() -> None:
    host, x = text_host(), tokens()
    outputs = [host(x)]
    for slot_id, blueprint_id, algorithm in zip(host.slot_ids, IDS, (*ALGORITHMS, ALGORITHMS[0]), strict=False):
        host.attach(slot_id, grown(blueprint_id, algorithm))
        assert not torch.equal(host(x), outputs[-1])
        outputs.append(host(x))
        for place in host.slot_ids:
            assert torch.equal(host.forward_from(place, host.forward_to(place, x)), host(x))


def test_input_and_output_share_one_embedding() -> None:
    host = text_host()
    names = [name for name, _ in host.named_host_parameters()]
    assert sum("token" in name for name in names) == 1
    count = VOCABULARY * WIDTH + CONTEXT * WIDTH + 2 * (4 * WIDTH + 4 * WIDTH * WIDTH + 2 * 32 * WIDTH + 32) + 2 * WIDTH
    assert sum(value.numel() for _, value in host.named_host_parameters()) == count


def test_init_comes_from_the_generator_alone_and_is_the_same_in_float64() -> None:
    torch.manual_seed(1)
    first = text_host().state_dict()
    again = text_host(1).double()
    assert not torch.equal(
        first["segments.0.embedding.token"], again.state_dict()["segments.0.embedding.token"].float()
    )
    again.reset(generator("host", 0))
    assert all(torch.equal(value, first[name].double()) for name, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("fault", "missing"),
    [
        ("intact", 0),
        ("few_samples+lr_over_3", 0),
        ("starved_1", 30 * (2 * WIDTH + 1)),
        ("narrow_8", 2 * 24 * (2 * WIDTH + 1)),
        ("unmixed_1", 2 * WIDTH + 4 * WIDTH * WIDTH),
        ("unmixed_all", 2 * (2 * WIDTH + 4 * WIDTH * WIDTH)),
        ("starved_0+unmixed_1", 30 * (2 * WIDTH + 1) + 2 * WIDTH + 4 * WIDTH * WIDTH),
    ],
)
def test_live_parameters(fault: str, missing: int) -> None:
    mask = fault_mask(text_host(), fault)
    assert sum(int((~values).sum()) for values in mask.values()) == missing


def test_an_unmixed_host_predicts_each_token_from_the_one_before_alone() -> None:
    host = text_host()
    mask_host(host, fault_mask(host, "unmixed_all"))
    before = tokens()
    after = before.clone()
    after[:, 3] = (after[:, 3] + 1) % VOCABULARY
    moved = (host(before) - host(after)).detach().abs().amax(dim=(0, 2)) > 0
    assert moved.nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("centre_tap_all", "transformer hosts have no 'centre_tap'; they have starved, narrow, unmixed"),
        ("few_classes", "transformer hosts have no 'few_classes'"),
        ("starved_2", "names block 2; the host has blocks 0 to 1"),
        ("unmixed_03", "names block 3"),
    ],
)
def test_a_fault_that_text_hosts_cannot_have_is_refused(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_fault(fault, "transformer", 2)
    with pytest.raises(ValueError, match="cnn hosts have no 'unmixed'"):
        check_fault("unmixed_0", "cnn", 3)


def test_units_that_stay_must_be_there() -> None:
    with pytest.raises(ValueError, match="alive_channels=33 must be from 1 to 32, the units of the MLP"):
        fault_mask(text_host(), "starved_0", alive_channels=33)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 18}, "num_heads=4 must divide width=18"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"place_rows": (2,)}, "place_rows must be between 0 and 1, got 2"),
    ],
)
def test_an_impossible_shape_is_refused_with_its_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_host(**changes)


@pytest.mark.parametrize("blueprint_id", ["attention", "flex_attention"])
def test_heads_that_do_not_divide_the_width_are_refused_with_the_numbers(blueprint_id: str) -> None:
    with pytest.raises(ValueError, match="attention of 4 heads needs a width that 4 divides, got 18"):
        build_blueprint("transformer", blueprint_id, 18)
    index = BLUEPRINT_IDS.index(blueprint_id)
    assert compatible([("transformer", 18), ("transformer", 16)])[:, index].tolist() == [False, True]
