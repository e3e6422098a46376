"""Host families and their faults: variations of one host shape and one task.

All families of a run share the host's shape, so that their parameters stack; missing weights are a mask. A masked
weight is zero, stays zero, and counts neither as a parameter nor in rent. Variations of the data and of the learning
rate are parsed here too and applied in :mod:`esper.envs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

INTACT = "intact"
JOIN = "+"
FAULT_FORMS: tuple[str, ...] = (
    "intact",
    "starved_<block>",
    "centre_tap_all",
    "centre_tap_<block digits>, for example centre_tap_12",
    "unmixed_all",
    "unmixed_<layer digits>",
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
    r"|(?P<local>centre_tap|unmixed)_(?P<blocks>all|[0-9]+)"
)

FAULT_KINDS: dict[str, tuple[str, ...]] = {
    "cnn": ("starved", "narrow", "centre_tap", "few_classes"),
    "transformer": ("starved", "narrow", "unmixed"),
    "custom": ("few_classes",),
}
"""Faults that are specific to each kind of host; all others apply to every host."""

LOCAL_FAULTS = ("centre_tap", "unmixed")
"""Faults of blocks that mix pixels or tokens; their names list the blocks' digits."""

BLOCK_FAULTS: dict[str, tuple[str, ...]] = {
    family: tuple(kind for kind in kinds if kind == "starved" or kind in LOCAL_FAULTS)
    for family, kinds in FAULT_KINDS.items()
}
"""Faults that single blocks or layers of each kind of host can have."""

_SPECIAL = frozenset(kind for kinds in FAULT_KINDS.values() for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The parsed name of a host family.

    Attributes:
        kinds: faults specific to one kind of host, by name.
        starved: blocks that keep only some channels, or layers whose MLP keeps only some units.
        local: blocks or layers that mix no pixels or tokens (``centre_tap``, ``unmixed``).
        all_local: true if no block or layer mixes pixels or tokens.
        width: channels of every block, or units of every MLP; ``None`` for the full width.
        lr_factor: factor on the learning rate of host and modules.
        few_classes, few_samples, label_noise: true for this variation of the data.
    """

    kinds: tuple[str, ...] = ()
    starved: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    all_local: bool = False
    width: int | None = None
    lr_factor: float = 1.0
    few_classes: bool = False
    few_samples: bool = False
    label_noise: bool = False

    @property
    def masks_weights(self) -> bool:
        """True if some of the host's weights are masked."""
        return bool(self.starved or self.local or self.all_local or self.width)


@cache
def parse_faults(family: str) -> Faults:
    """Parse a family's name: one fault, or several joined with ``+``.

    Raises:
        ValueError: an unknown form, a fault named twice, two that exclude each other, or ``intact`` with another.
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
    named = [form["kind"] or form["local"] or form["amount"] or form["word"] for form in forms]
    return Faults(
        kinds=tuple(kind for kind in dict.fromkeys(named) if kind in _SPECIAL),
        starved=tuple(int(form["block"]) for form in forms if form["kind"]),
        local=tuple(int(digit) for blocks in taps if blocks != "all" for digit in blocks),
        all_local="all" in taps,
        width=amounts.get("narrow"),
        lr_factor=amounts.get("lr_times", 1) / amounts.get("lr_over", 1),
        few_classes="few_classes" in words,
        few_samples="few_samples" in words,
        label_noise="label_noise" in words,
    )


def check_fault(fault: str, family: str, num_blocks: int) -> None:
    """Refuse a fault that a host of ``num_blocks`` blocks or layers cannot have.

    Raises:
        ValueError: as for :func:`parse_faults`, no such block, or a fault that this kind of host does not have.
    """
    faults, possible = parse_faults(fault), FAULT_KINDS.get(family, FAULT_KINDS["custom"])
    strange = [kind for kind in faults.kinds if kind not in possible]
    if strange:
        raise ValueError(
            f"host fault {fault!r}: {family} hosts have no {strange[0]!r}; "
            f"they have {', '.join(possible)}, and those of data and learning rate"
        )
    missing = [block for block in (*faults.starved, *faults.local) if block >= num_blocks]
    if missing:
        raise ValueError(f"host fault {fault!r} names block {missing[0]}; the host has blocks 0 to {num_blocks - 1}")
