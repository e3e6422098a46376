"""Host families: masks over one shape, equivalent to removing the masked weights."""

from __future__ import annotations

import pytest
import torch
from helpers import mask_host
from torch import nn

from esper.hosts import (
    Place,
    SegmentedHost,
    build_host,
    check_fault,
    fault_mask,
    parse_faults,
    reset_parameters,
)
from esper.hosts.faults import Faults
from esper.runtime.rng import generator


def digits_host() -> SegmentedHost:
    host = build_host(
        "cnn",
        in_channels=1,
        image_size=8,
        num_classes=10,
        widths=(8, 8, 8),
        kernel_sizes=(3, 3, 3),
        strides=(2, 1, 1),
        pools=(False, True, False),
    )
    reset_parameters(host, generator("host"))
    return host


def num_live(mask: dict[str, torch.Tensor]) -> int:
    return sum(int(values.sum()) for values in mask.values())


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        ("intact", 1362),  # 72 + 576 + 576 + 3·16 + 90
        ("few_classes", 1362),
        ("centre_tap_12", 338),  # 72 + 64 + 64 + 48 + 90
        ("centre_tap_all", 274),  # 8 + 64 + 64 + 48 + 90
        ("starved_0", 1362 - 6 * (9 + 2)),
        ("starved_1", 1362 - 6 * (72 + 2)),
        ("starved_2", 1362 - 6 * (72 + 2)),
        ("starved_0+starved_2", 1362 - 6 * (9 + 2) - 6 * (72 + 2)),
        ("starved_1+centre_tap_12", 338 - 6 * (8 + 2)),  # two rows of block 1, centres only
        ("narrow_4", 4 * 9 + 2 * 4 * 4 * 9 + 3 * 8 + 4 * 10 + 10),
        ("narrow_4+centre_tap_all", 4 + 2 * 4 * 4 + 3 * 8 + 4 * 10 + 10),
        ("narrow_8", 1362),
        ("few_samples", 1362),
        ("label_noise", 1362),
        ("lr_times_3", 1362),
        ("lr_over_10", 1362),
    ],
)
def test_live_parameters(fault: str, count: int) -> None:
    host = digits_host()
    mask = fault_mask(host, fault)
    assert [(name, value.shape) for name, value in mask.items()] == [
        (name, value.shape) for name, value in host.named_host_parameters()
    ]
    assert all(value.dtype == torch.bool for value in mask.values())
    assert num_live(mask) == count


def test_a_starved_block_gives_only_its_first_channels() -> None:
    host = digits_host()
    mask_host(host, fault_mask(host, "starved_1", alive_channels=3))
    feature = host.forward_to("r0c1", torch.randn(20, 1, 8, 8))
    assert (feature.abs().amax((0, 2, 3)) > 0).tolist() == [True] * 3 + [False] * 5


def test_centre_tap_blocks_mix_no_pixels() -> None:
    """Behind block 0, whose kernel is whole, a pixel reaches only its own place."""
    host = digits_host()
    mask_host(host, fault_mask(host, "centre_tap_12"))
    weight = host.state_dict()["segments.1.conv1.weight"]
    x = torch.randn(1, 8, 4, 4)
    torch.testing.assert_close(
        nn.functional.conv2d(x, weight, padding=1), nn.functional.conv2d(x, weight[..., 1:2, 1:2])
    )
    assert host.state_dict()["segments.0.conv0.weight"].count_nonzero() == 72


def test_a_narrow_host_computes_what_a_host_of_that_width_computes() -> None:
    """For whole groups of the GroupNorm: the first of two groups of four channels is a host with one group."""
    host = digits_host()
    mask_host(host, fault_mask(host, "narrow_4"))
    small = build_host(
        "cnn",
        in_channels=1,
        image_size=8,
        num_classes=10,
        widths=(4, 4, 4),
        kernel_sizes=(3, 3, 3),
        strides=(2, 1, 1),
        pools=(False, True, False),
        norm_groups=1,
    )
    with torch.no_grad():
        for (_, value), (_, wide) in zip(small.named_host_parameters(), host.named_host_parameters(), strict=True):
            value.copy_(wide[tuple(slice(size) for size in value.shape)])
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(host(x), small(x))
    assert num_live(fault_mask(host, "narrow_4")) == sum(value.numel() for value in small.parameters())


def test_nothing_reads_the_channels_that_a_narrow_host_lacks() -> None:
    host = digits_host()
    mask_host(host, fault_mask(host, "narrow_4"))
    feature = torch.randn(5, 8, 4, 4)
    revived = feature.clone()
    revived[:, 4:] += 1.0
    for slot_id in ("r0c0", "r0c2"):
        assert torch.equal(host.forward_from(slot_id, feature), host.forward_from(slot_id, revived))


def test_a_joined_name_says_all_that_its_parts_say() -> None:
    faults = parse_faults("starved_0+centre_tap_12+narrow_4+few_classes+few_samples+label_noise+lr_over_4")
    assert faults == Faults(
        starved=(0,),
        kinds=("starved", "centre_tap", "narrow", "few_classes"),
        local=(1, 2),
        width=4,
        lr_factor=0.25,
        few_classes=True,
        few_samples=True,
        label_noise=True,
    )
    assert parse_faults("intact") == Faults()
    assert parse_faults("lr_times_3").lr_factor == 3
    assert parse_faults("centre_tap_all").all_local


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("starved_0+odd", r"unknown host fault 'odd' in 'starved_0\+odd'; known: intact.*joined with '\+'"),
        ("starved_0+", r"unknown host fault '' in"),
        ("starved_0+starved_0", "names 'starved_0' more than once"),
        ("label_noise+label_noise", "names 'label_noise' more than once"),
        ("narrow_2+narrow_4", "says 'narrow' more than once"),
        ("lr_times_2+lr_over_4", "says 'lr' more than once"),
        ("intact+starved_0", "joins 'intact' with another; leave it out"),
        ("starved_00", "unknown host fault 'starved_00'"),
        ("narrow_0", "unknown host fault 'narrow_0'; known: .*narrow_<channels>"),
        ("lr_times_0", "unknown host fault 'lr_times_0'"),
        ("lr_0.5", r"unknown host fault 'lr_0.5'; known: .*lr_times_<n>, lr_over_<n>"),
    ],
)
def test_a_name_that_makes_no_sense_is_refused(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_faults(fault)


def test_an_intact_mask_changes_nothing() -> None:
    host, x = digits_host(), torch.randn(3, 1, 8, 8)
    before = host(x)
    mask_host(host, fault_mask(host, "intact"))
    assert torch.equal(host(x), before)


def test_attached_modules_are_not_masked() -> None:
    host = digits_host()
    host.attach("r0c0", nn.Conv2d(8, 8, 3, padding=1))
    assert num_live(fault_mask(host, "intact")) == 1362


@pytest.mark.parametrize("fault", ["", "starved", "starved_x", "centre_tap", "centre_tap_", "Intact", "no_classes"])
def test_an_unknown_fault_lists_the_forms(fault: str) -> None:
    with pytest.raises(ValueError, match=r"unknown host fault.*intact, starved_<block>, centre_tap_all"):
        fault_mask(digits_host(), fault)


@pytest.mark.parametrize("fault", ["starved_3", "centre_tap_13", "starved_0+starved_3"])
def test_a_block_that_is_not_there_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match="names block 3; the host has blocks 0 to 2"):
        check_fault(fault, "cnn", 3)


@pytest.mark.parametrize("alive", [0, 9])
def test_alive_channels_must_fit_the_width(alive: int) -> None:
    with pytest.raises(ValueError, match=f"alive_channels={alive} must be from 1 to 8"):
        fault_mask(digits_host(), "starved_0", alive_channels=alive)


def test_a_host_is_not_wider_than_its_shape() -> None:
    with pytest.raises(ValueError, match="'narrow_9': the number must be from 1 to 8, the width of the block"):
        fault_mask(digits_host(), "narrow_9")


def test_a_host_without_blocks_is_intact_or_refused() -> None:
    host = SegmentedHost([nn.Linear(2, 2), nn.Linear(2, 2)], [Place("r0c0", 2)], 2)
    host.family = "custom"
    assert num_live(fault_mask(host, "label_noise+lr_times_2")) == 12
    with pytest.raises(ValueError, match="custom hosts have no 'starved'; they have few_classes"):
        fault_mask(host, "starved_0")
