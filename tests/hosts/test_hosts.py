"""A host runs whole or by segments with the same result, and starts from its generator alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from esper.blueprints import build_blueprint
from esper.growth.actions import BlendAlgorithm
from esper.growth.blending import BlendedModule, Gate
from esper.hosts import CNNHost, Place, SegmentedHost, build_host, reset_parameters
from esper.runtime.rng import generator

DIGITS: dict[str, Any] = {
    "widths": (8, 8, 8),
    "kernel_sizes": (3, 3, 3),
    "strides": (2, 1, 1),
    "pools": (False, True, False),
}
LEAVES = (nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear)


def digits_host(stream: int = 0, **changes: Any) -> SegmentedHost:
    shape: dict[str, Any] = {"image_size": 8, **DIGITS, **changes}
    host = build_host("cnn", in_channels=1, num_classes=10, **shape)
    reset_parameters(host, generator("host", stream))
    return host


def images(size: int = 8) -> torch.Tensor:
    return torch.randn(5, 1, size, size, generator=generator("images"))


def grown(blueprint_id: str, algorithm: BlendAlgorithm, channels: int = 8) -> BlendedModule:
    gate = Gate(channels) if algorithm is BlendAlgorithm.GATE else None
    module = BlendedModule(build_blueprint("cnn", blueprint_id, channels), algorithm, gate, alpha=0.6)
    reset_parameters(module, generator("module", blueprint_id))
    with torch.no_grad():
        module.body.scale.fill_(0.5)
    return module


def test_digits_host_has_a_place_after_each_block_before_pooling() -> None:
    host = digits_host()
    assert host.places == (Place("r0c0", 8), Place("r0c1", 8), Place("r0c2", 8))
    assert [host.forward_to(slot, images()).shape[-1] for slot in host.slot_ids] == [4, 4, 2]
    assert host(images()).shape == (5, 10)


def test_row_one_places_follow_pools_in_canonical_order() -> None:
    host = digits_host(place_rows=(0, 1), pools=(False, True, True), widths=(2, 4, 6))
    assert host.places == (Place("r0c0", 2), Place("r0c1", 4), Place("r1c1", 4), Place("r0c2", 6), Place("r1c2", 6))
    assert [host.forward_to(slot, images()).shape[-1] for slot in host.slot_ids] == [4, 4, 2, 2, 1]
    assert digits_host(place_rows=(1,)).slot_ids == ("r1c1",)


def test_places_do_not_change_the_host() -> None:
    """A stream gives the same function whatever places are offered."""
    for rows in ((0, 1), (1,)):
        torch.testing.assert_close(digits_host(place_rows=rows)(images()), digits_host()(images()), rtol=0, atol=0)


def test_whole_equals_segments_exactly_with_and_without_modules() -> None:
    host = digits_host(place_rows=(0, 1))
    x = images()
    bare = host(x)
    attached: list[torch.Tensor] = [bare]
    for slot_id, (blueprint_id, algorithm) in zip(
        host.slot_ids,
        [
            ("conv_light", BlendAlgorithm.ADD),
            ("attention", BlendAlgorithm.MULTIPLY),
            ("norm", BlendAlgorithm.GATE),
            ("bottleneck", BlendAlgorithm.ADD),
        ],
        strict=True,
    ):
        for place in host.slot_ids:
            assert torch.equal(host.forward_from(place, host.forward_to(place, x)), host(x))
        host.attach(slot_id, grown(blueprint_id, algorithm))
        assert not torch.equal(host(x), attached[-1])
        attached.append(host(x))
    for place in host.slot_ids:
        assert torch.equal(host.forward_from(place, host.forward_to(place, x)), host(x))


def test_forward_to_stops_before_the_module_there_and_forward_from_applies_it() -> None:
    host, x = digits_host(), images()
    before_to, before_out = host.forward_to("r0c1", x), host(x)
    host.attach("r0c1", grown("conv_light", BlendAlgorithm.ADD))
    assert torch.equal(host.forward_to("r0c1", x), before_to)
    assert not torch.equal(host.forward_to("r0c2", x), digits_host().forward_to("r0c2", x))
    assert not torch.equal(host.forward_from("r0c1", before_to), before_out)


def test_detach_gives_the_host_back() -> None:
    host, x = digits_host(), images()
    before, module = host(x), grown("conv_heavy", BlendAlgorithm.ADD)
    names = [name for name, _ in host.named_host_parameters()]
    host.attach("r0c0", module)
    assert [name for name, _ in host.named_host_parameters()] == names
    assert host.detach("r0c0") is module
    assert torch.equal(host(x), before)


def test_attach_and_detach_refuse_wrong_places() -> None:
    host = digits_host()
    with pytest.raises(ValueError, match=r"no place 'r1c0'; this host has r0c0, r0c1, r0c2"):
        host.attach("r1c0", nn.Identity())
    with pytest.raises(ValueError, match="place r0c0 is empty"):
        host.detach("r0c0")
    host.attach("r0c0", nn.Identity())
    with pytest.raises(ValueError, match="place r0c0 is taken"):
        host.attach("r0c0", nn.Identity())


def test_segments_are_traceable_from_plain_layers() -> None:
    x = images()
    for segment in digits_host(place_rows=(0, 1)).segments:
        graph = torch.fx.symbolic_trace(segment)
        nodes = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
        assert all(node.op == "call_module" for node in nodes)
        assert all(isinstance(graph.get_submodule(str(node.target)), LEAVES) for node in nodes)
        assert torch.equal(graph(x), segment(x))
        x = segment(x)


def test_init_comes_from_the_generator_alone_and_is_the_same_in_float64() -> None:
    torch.manual_seed(1)
    first = digits_host().state_dict()
    torch.manual_seed(2)
    again = digits_host().double()
    reset_parameters(again, generator("host", 0))
    for name, value in again.state_dict().items():
        assert value.dtype == torch.float64
        assert torch.equal(value, first[name].double())
    assert not torch.equal(digits_host(1).state_dict()["segments.0.conv0.weight"], first["segments.0.conv0.weight"])


def test_init_stays_within_one_over_root_fan_in() -> None:
    weight = digits_host().state_dict()["segments.1.conv1.weight"]  # [8, 8, 3, 3], fan_in 72
    bound = 72**-0.5
    assert 0.9 * bound < weight.abs().max() <= bound
    assert abs(float(weight.std()) - bound / 3**0.5) < 0.1 * bound


def test_init_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"initialise PReLU \(at '1'\)"):
        reset_parameters(nn.Sequential(nn.Linear(2, 2), nn.PReLU()), generator("x"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": (2, 1)}, r"^strides must have one entry per block of widths \(3\), got \[2, 1\]"),
        ({"widths": (), "kernel_sizes": (), "strides": (), "pools": ()}, "widths must name at least one block"),
        ({"widths": (8, 7, 8)}, r"norm_groups=2 must divide widths\[1\]=7"),
        ({"norm_groups": 0}, "norm_groups must be at least 1, got 0"),
        ({"widths": (8, 0, 8)}, r"widths\[1\] must be at least 1, got 0"),
        ({"strides": (0, 1, 1)}, r"strides\[0\] must be at least 1, got 0"),
        ({"kernel_sizes": (3, 2, 3)}, r"kernel_sizes\[1\] must be odd, got 2"),
        ({"place_rows": (0, 2)}, "place_rows must be between 0 and 1, got 2"),
        ({"image_size": 4, "pools": (True, True, True)}, "too much for images of 4x4: block 1 would pool a map of 1x1"),
    ],
)
def test_an_impossible_shape_is_refused_with_its_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        digits_host(**changes)


@pytest.mark.parametrize("size", [5, 7, 8, 11])
def test_every_accepted_image_size_runs(size: int) -> None:
    assert digits_host(image_size=size)(images(size)).shape == (5, 10)


def test_unknown_host_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"host: unknown 'resnet'; choose from cnn"):
        build_host("resnet", in_channels=1, image_size=8, num_classes=10)


def test_places_out_of_order_are_refused() -> None:
    layers = [nn.Identity(), nn.Identity(), nn.Identity()]
    with pytest.raises(ValueError, match="canonical order"):
        SegmentedHost(layers, [Place("r0c1", 1), Place("r0c0", 1)], 1)
    with pytest.raises(ValueError, match="1 places need 2 segments, not 3"):
        SegmentedHost(layers, [Place("r0c0", 1)], 1)


def test_host_has_no_layer_that_mixes_samples() -> None:
    host, x = digits_host(), images()
    assert isinstance(host, CNNHost)
    torch.testing.assert_close(host(x)[2:3], host(x[2:3]))
