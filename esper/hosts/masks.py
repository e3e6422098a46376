"""Masks of the weights that a host keeps under its family's faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from esper.hosts.base import SegmentedHost
from esper.hosts.cnn import CNNHost
from esper.hosts.faults import Faults, check_fault, parse_faults
from esper.hosts.transformer import TransformerHost

Mask = dict[str, Tensor]
"""Parameter name (as in ``host.named_host_parameters()``) to ``bool`` of its shape, true for weights that exist."""


def fault_mask(host: SegmentedHost, fault: str, alive_channels: int = 2) -> Mask:
    """Return the mask of a host's weights under a fault.

    For a CNN:

    * ``starved_<i>``: block i keeps only its first ``alive_channels`` channels (convolution rows, gamma, beta). The
      weights that read the other channels stay, so that a module there can revive them.
    * ``centre_tap_all``, ``centre_tap_<digits>``: all blocks, or those with these indices, keep only the centre of each
      kernel, so that the block mixes no pixels.
    * ``narrow_<k>``: every block keeps only its first k channels, and the weights that would read the others go too: a
      smaller host. For whole groups of the GroupNorm it computes the same as a host built with that width.

    For a transformer:

    * ``starved_<i>``: the MLP of layer i keeps only its first ``alive_channels`` hidden units; the weights that read
      the others go too.
    * ``unmixed_all``, ``unmixed_<digits>``: these layers have no attention branch and mix no tokens.
    * ``narrow_<k>``: every MLP keeps only its first k hidden units.

    Under all other faults all weights are kept.

    Args:
        host: the host, on any device.
        fault: one of :data:`~esper.hosts.faults.FAULT_FORMS`, or several joined with ``+``: a weight exists if it does
            under each.
        alive_channels: channels or hidden units that a starved block or MLP keeps.

    Raises:
        ValueError: unknown fault, no such block, channels outside 1 to the block's width, or a fault that this kind of
            host does not have.
    """
    mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in host.named_host_parameters()}
    faults = parse_faults(fault)
    if faults.masks_weights:
        check_fault(fault, host.family, host.num_blocks)
        _MASKERS[host.family](mask, host, faults, alive_channels)
    return mask


def _mask_cnn(mask: Mask, host: SegmentedHost, faults: Faults, alive_channels: int) -> None:
    blocks = cast(CNNHost, host).blocks
    for block in faults.starved:
        _keep_channels(mask, host, block, alive_channels, f"alive_channels={alive_channels}")
    for block in range(len(blocks)) if faults.all_local else faults.local:
        kernel = mask[blocks[block].conv]
        centre = kernel.shape[-1] // 2
        elsewhere = torch.ones_like(kernel)
        elsewhere[..., centre, centre] = False
        kernel[elsewhere] = False
    if faults.width is not None:
        for block in range(len(blocks)):
            _keep_channels(mask, host, block, faults.width, f"host fault 'narrow_{faults.width}': the number")
        for reader in (*(names.conv for names in blocks[1:]), cast(CNNHost, host).head):
            mask[reader][:, faults.width :] = False


def _keep_channels(mask: Mask, host: SegmentedHost, block: int, kept: int, what: str) -> None:
    names = cast(CNNHost, host).blocks[block]
    _check_kept(kept, len(mask[names.conv]), what, "the width of the block")
    for name in (names.conv, names.gamma, names.beta):
        mask[name][kept:] = False


def _mask_transformer(mask: Mask, host: SegmentedHost, faults: Faults, alive_channels: int) -> None:
    layers = cast(TransformerHost, host).layers
    kept = [(layer, alive_channels, f"alive_channels={alive_channels}") for layer in faults.starved]
    if faults.width is not None:
        what = f"host fault 'narrow_{faults.width}': the number"
        kept += [(layer, faults.width, what) for layer in range(len(layers))]
    for layer, count, what in kept:
        names = layers[layer]
        _check_kept(count, len(mask[names.up]), what, "the units of the MLP")
        mask[names.up][count:] = False
        mask[names.up_bias][count:] = False
        mask[names.down][:, count:] = False
    for layer in range(len(layers)) if faults.all_local else faults.local:
        for name, exists in mask.items():
            if name.startswith(layers[layer].attention):
                exists[...] = False


def _check_kept(kept: int, there: int, what: str, of: str) -> None:
    if not 1 <= kept <= there:
        raise ValueError(f"{what} must be from 1 to {there}, {of}")


_MASKERS: dict[str, Callable[[Mask, SegmentedHost, Faults, int], None]] = {
    "cnn": _mask_cnn,
    "transformer": _mask_transformer,
}
