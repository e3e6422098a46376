"""Host families: one shape, from which some weights are missing for ever.

All families of a run share the host's shape, so that their parameters stack; a fault is a mask over them. A masked
weight is zero, stays zero, and counts neither as a parameter nor in rent.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from esper.hosts.base import SegmentedHost
from esper.hosts.cnn import CNNHost

INTACT = "intact"
FEW_CLASSES = "few_classes"
FAULT_FORMS: tuple[str, ...] = (
    "intact",
    "starved_<block>",
    "centre_tap_all",
    "centre_tap_<block digits>, for example centre_tap_12",
    "few_classes",
)

_STARVED = re.compile(r"starved_([0-9]+)")
_CENTRE_TAP = re.compile(r"centre_tap_(all|[0-9]+)")


def check_fault(fault: str, num_blocks: int) -> None:
    """Refuse a fault that a host of ``num_blocks`` blocks cannot have.

    Raises:
        ValueError: unknown form, or no such block.
    """
    if fault in (INTACT, FEW_CLASSES):
        return
    starved, centre_tap = _STARVED.fullmatch(fault), _CENTRE_TAP.fullmatch(fault)
    if starved is None and centre_tap is None:
        raise ValueError(f"unknown host fault {fault!r}; known: {', '.join(FAULT_FORMS)}")
    blocks = [int(starved[1])] if starved else _centre_tap_blocks(fault, num_blocks)
    missing = [block for block in blocks if block >= num_blocks]
    if missing:
        raise ValueError(f"host fault {fault!r} names block {missing[0]}; the host has blocks 0 to {num_blocks - 1}")


def _centre_tap_blocks(fault: str, num_blocks: int) -> list[int]:
    match = _CENTRE_TAP.fullmatch(fault)
    if match is None:
        return []
    return list(range(num_blocks)) if match[1] == "all" else [int(digit) for digit in match[1]]


def fault_mask(host: SegmentedHost, fault: str, alive_channels: int = 2) -> dict[str, Tensor]:
    """Which weights of a host instance exist.

    * ``intact``: all.
    * ``starved_<i>``: of block i only the first ``alive_channels`` channels (convolution rows, gamma, beta).
    * ``centre_tap_all``, ``centre_tap_<digits>``: in all blocks, or in those whose indices the digits are, only the
      centre of each kernel, so that the block mixes no pixels.
    * ``few_classes``: all weights; its data is restricted instead (:mod:`esper.envs.instances`).

    Args:
        host: the host, on any device.
        fault: one of the forms above.
        alive_channels: what a starved block keeps.

    Returns:
        Parameter name (as in ``host.named_host_parameters()``) to ``bool`` of the parameter's shape, true where the
        weight exists.

    Raises:
        ValueError: unknown fault, no such block, ``alive_channels`` outside 1 to the block's width, or a fault on a
            host that has no blocks to mask.
    """
    mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in host.named_host_parameters()}
    if fault in (INTACT, FEW_CLASSES):
        return mask
    if not isinstance(host, CNNHost):
        raise ValueError(f"host fault {fault!r} needs a host of convolution blocks; {host.family} hosts are intact")
    check_fault(fault, len(host.blocks))
    starved = _STARVED.fullmatch(fault)
    if starved is not None:
        names = host.blocks[int(starved[1])]
        width = len(mask[names.conv])
        if not 1 <= alive_channels <= width:
            raise ValueError(f"alive_channels={alive_channels} must be from 1 to {width}, the width of the block")
        for name in (names.conv, names.gamma, names.beta):
            mask[name][alive_channels:] = False
    for block in _centre_tap_blocks(fault, len(host.blocks)):
        kernel = mask[host.blocks[block].conv]
        centre = kernel.shape[-1] // 2
        kernel[:] = False
        kernel[..., centre, centre] = True
    return mask
