"""Host families: one shape, one task, and what a family's hosts lack of them.

All families of a run share the host's shape, so that their parameters stack; what a host lacks is a mask over them. A
masked weight is zero, stays zero, and counts neither as a parameter nor in rent. What a host lacks of its data or of
its learning rate is said by the same names and done in :mod:`esper.envs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from esper.hosts.base import SegmentedHost
from esper.hosts.cnn import CNNHost

INTACT = "intact"
JOIN = "+"
FAULT_FORMS: tuple[str, ...] = (
    "intact",
    "starved_<block>",
    "centre_tap_all",
    "centre_tap_<block digits>, for example centre_tap_12",
    "narrow_<channels>",
    "few_classes",
    "few_samples",
    "label_noise",
    "lr_times_<n>",
    "lr_over_<n>",
)

_FORM = re.compile(
    r"(?P<word>intact|few_classes|few_samples|label_noise)"
    r"|(?P<kind>starved)_(?P<block>0|[1-9][0-9]*)"
    r"|(?P<amount>narrow|lr_times|lr_over)_(?P<number>[1-9][0-9]*)"
    r"|centre_tap_(?P<blocks>all|[0-9]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the name of a host family says.

    Attributes:
        starved: blocks that keep only some channels.
        centre_tap: blocks whose kernels keep only their centre.
        centre_tap_all: all blocks do.
        width: channels that every block has, or ``None`` for all of the shape's.
        lr_factor: on the learning rate of host and modules.
        few_classes, few_samples, label_noise: what its data is like.
    """

    starved: tuple[int, ...] = ()
    centre_tap: tuple[int, ...] = ()
    centre_tap_all: bool = False
    width: int | None = None
    lr_factor: float = 1.0
    few_classes: bool = False
    few_samples: bool = False
    label_noise: bool = False

    @property
    def masks_weights(self) -> bool:
        """Whether the host lacks weights."""
        return bool(self.starved or self.centre_tap or self.centre_tap_all or self.width)


@cache
def parse_faults(family: str) -> Faults:
    """Read a family's name: one fault, or several joined with ``+``.

    Raises:
        ValueError: an unknown form, one that is named twice, two that exclude each other, or ``intact`` with another.
    """
    parts = family.split(JOIN)
    forms = []
    for part in parts:
        form = _FORM.fullmatch(part)
        if form is None:
            whole = "" if part == family else f" in {family!r}"
            raise ValueError(
                f"unknown host fault {part!r}{whole}; known: {', '.join(FAULT_FORMS)}, and several joined with {JOIN!r}"
            )
        forms.append(form)
    if len(parts) > 1 and INTACT in parts:
        raise ValueError(f"host fault {family!r} joins {INTACT!r} with another; leave it out")
    words = [form["word"] for form in forms if form["word"]]
    amounts = {form["amount"]: int(form["number"]) for form in forms if form["amount"]}
    kinds = [form["amount"].split("_")[0] for form in forms if form["amount"]]
    for names, what in ((parts, "names {} more than once"), (kinds, "says {} more than once")):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise ValueError(f"host fault {family!r} {what.format(repr(twice[0]))}")
    taps = [form["blocks"] for form in forms if form["blocks"]]
    return Faults(
        starved=tuple(int(form["block"]) for form in forms if form["kind"]),
        centre_tap=tuple(int(digit) for blocks in taps if blocks != "all" for digit in blocks),
        centre_tap_all="all" in taps,
        width=amounts.get("narrow"),
        lr_factor=amounts.get("lr_times", 1) / amounts.get("lr_over", 1),
        few_classes="few_classes" in words,
        few_samples="few_samples" in words,
        label_noise="label_noise" in words,
    )


def check_fault(fault: str, num_blocks: int) -> None:
    """Refuse a fault that a host of ``num_blocks`` blocks cannot have.

    Raises:
        ValueError: as :func:`parse_faults`, or no such block.
    """
    faults = parse_faults(fault)
    missing = [block for block in (*faults.starved, *faults.centre_tap) if block >= num_blocks]
    if missing:
        raise ValueError(f"host fault {fault!r} names block {missing[0]}; the host has blocks 0 to {num_blocks - 1}")


def fault_mask(host: SegmentedHost, fault: str, alive_channels: int = 2) -> dict[str, Tensor]:
    """Which weights of a host instance exist.

    * ``starved_<i>``: of block i only the first ``alive_channels`` channels (convolution rows, gamma, beta). What reads
      the others stays, so that a module there can bring them to life.
    * ``centre_tap_all``, ``centre_tap_<digits>``: in all blocks, or in those whose indices the digits are, only the
      centre of each kernel, so that the block mixes no pixels.
    * ``narrow_<k>``: of every block only the first k channels, and nothing that would read the others: a smaller host.
      For whole groups of the GroupNorm it computes what a host built with that width computes.
    * all others: all weights.

    Args:
        host: the host, on any device.
        fault: one of :data:`FAULT_FORMS`, or several joined with ``+``: a weight exists if it does in each.
        alive_channels: what a starved block keeps.

    Returns:
        Parameter name (as in ``host.named_host_parameters()``) to ``bool`` of the parameter's shape, true where the
        weight exists.

    Raises:
        ValueError: unknown fault, no such block, channels outside 1 to the block's width, or a fault on a host that has
            no blocks to mask.
    """
    mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in host.named_host_parameters()}
    faults = parse_faults(fault)
    if not faults.masks_weights:
        return mask
    if not isinstance(host, CNNHost):
        raise ValueError(f"host fault {fault!r} needs a host of convolution blocks; {host.family} hosts are intact")
    num_blocks = len(host.blocks)
    check_fault(fault, num_blocks)
    for block in faults.starved:
        _keep_channels(mask, host, block, alive_channels, f"alive_channels={alive_channels}")
    for block in range(num_blocks) if faults.centre_tap_all else faults.centre_tap:
        kernel = mask[host.blocks[block].conv]
        centre = kernel.shape[-1] // 2
        elsewhere = torch.ones_like(kernel)
        elsewhere[..., centre, centre] = False
        kernel[elsewhere] = False
    if faults.width is not None:
        for block in range(num_blocks):
            _keep_channels(mask, host, block, faults.width, f"host fault 'narrow_{faults.width}': the number")
        for reader in (*(names.conv for names in host.blocks[1:]), host.head):
            mask[reader][:, faults.width :] = False
    return mask


def _keep_channels(mask: dict[str, Tensor], host: CNNHost, block: int, kept: int, what: str) -> None:
    names = host.blocks[block]
    width = len(mask[names.conv])
    if not 1 <= kept <= width:
        raise ValueError(f"{what} must be from 1 to {width}, the width of the block")
    for name in (names.conv, names.gamma, names.beta):
        mask[name][kept:] = False
