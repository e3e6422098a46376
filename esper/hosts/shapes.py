"""Checks of the shapes of Esper's own hosts, apart from the hosts: a refused command does not wait for torch."""

from __future__ import annotations

from collections.abc import Sequence

from esper.runtime.checks import at_least, distinct, within


def check_blocks(
    *,
    widths: Sequence[int],
    kernel_sizes: Sequence[int],
    strides: Sequence[int],
    pools: Sequence[bool],
    norm_groups: int,
    place_rows: Sequence[int],
    prefix: str = "",
) -> None:
    """Refuse arguments of which no :class:`~esper.hosts.cnn.CNNHost` can be built.

    Raises:
        ValueError: an argument is invalid; the message names it, after ``prefix``.
    """
    if not widths:
        raise ValueError(f"{prefix}widths must name at least one block, got []")
    for key, values in (("kernel_sizes", kernel_sizes), ("strides", strides), ("pools", pools)):
        if len(values) != len(widths):
            raise ValueError(
                f"{prefix}{key} must have one entry per block of {prefix}widths ({len(widths)}), got {list(values)}"
            )
    at_least(f"{prefix}norm_groups", norm_groups, 1)
    for block, (width, kernel, stride) in enumerate(zip(widths, kernel_sizes, strides, strict=True)):
        at_least(f"{prefix}widths[{block}]", width, 1)
        if width % norm_groups:
            raise ValueError(f"{prefix}norm_groups={norm_groups} must divide {prefix}widths[{block}]={width}")
        at_least(f"{prefix}kernel_sizes[{block}]", kernel, 1)
        if kernel % 2 == 0:
            raise ValueError(f"{prefix}kernel_sizes[{block}] must be odd, got {kernel}")
        at_least(f"{prefix}strides[{block}]", stride, 1)
    _check_place_rows(place_rows, prefix)


def check_layers(
    *, num_layers: int, width: int, num_heads: int, mlp_width: int, place_rows: Sequence[int], prefix: str = ""
) -> None:
    """Refuse arguments of which no :class:`~esper.hosts.transformer.TransformerHost` can be built.

    Raises:
        ValueError: an argument is invalid; the message names it, after ``prefix``.
    """
    numbers = {"num_layers": num_layers, "width": width, "num_heads": num_heads, "mlp_width": mlp_width}
    for key, number in numbers.items():
        at_least(f"{prefix}{key}", number, 1)
    if width % num_heads:
        raise ValueError(f"{prefix}num_heads={num_heads} must divide {prefix}width={width}")
    _check_place_rows(place_rows, prefix)


def _check_place_rows(rows: Sequence[int], prefix: str = "") -> None:
    """Refuse an empty list of place rows, repeated rows, and rows other than 0 and 1.

    Raises:
        ValueError: the list is invalid; the message begins with ``prefix`` and ``place_rows``.
    """
    distinct(f"{prefix}place_rows", rows)
    for row in rows:
        within(f"{prefix}place_rows", row, 0, 1)
