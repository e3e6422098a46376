"""Host families: one shape, one task, and what a family's hosts lack of them.

All families of a run share the host's shape, so that their parameters stack; what a host lacks is a mask over them. A
masked weight is zero, stays zero, and counts neither as a parameter nor in rent. What a host lacks of its data or of
its learning rate is said by the same names and done in :mod:`esper.envs`.
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
"""Which faults the hosts of each family may have, besides those of all hosts."""

_SPECIAL = frozenset(kind for kinds in FAULT_KINDS.values() for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the name of a host family says.

    Attributes:
        kinds: faults that not all hosts may have, by name.
        starved: blocks that keep only some channels, or layers whose MLP keeps only some units.
        local: blocks or layers that mix no pixels or tokens (``centre_tap``, ``unmixed``).
        all_local: all of them do not.
        width: channels of every block, or units of every MLP; ``None`` for all of the shape's.
        lr_factor: on the learning rate of host and modules.
        few_classes, few_samples, label_noise: what its data is like.
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
        """Whether the host lacks weights."""
        return bool(self.starved or self.local or self.all_local or self.width)


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
        ValueError: as :func:`parse_faults`, no such block, or a fault that hosts of the family do not have.
    """
    faults = parse_faults(fault)
    strange = [kind for kind in faults.kinds if kind not in FAULT_KINDS[family]]
    if strange:
        raise ValueError(
            f"host fault {fault!r}: {family} hosts have no {strange[0]!r}; "
            f"they have {', '.join(FAULT_KINDS[family])}, and those of data and learning rate"
        )
    missing = [block for block in (*faults.starved, *faults.local) if block >= num_blocks]
    if missing:
        raise ValueError(f"host fault {fault!r} names block {missing[0]}; the host has blocks 0 to {num_blocks - 1}")
