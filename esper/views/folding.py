"""Tables that remain readable in a narrow terminal, where every row becomes a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

BROAD = 10_000
"""Terminal width at which every table fits."""


class FoldingTable(Table):
    """A table; in a terminal that is too narrow for it, rows become groups of lines ``header: value``.

    The first column names a row.

    Args:
        title: text above the table.
        caption: text below it.
    """

    def __init__(self, title: str | None = None, caption: str | None = None) -> None:
        super().__init__(
            title=title,
            caption=caption,
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
        )
        self._names: list[str] = []

    def add(self, header: str, name: str | None = None, **options: Any) -> None:
        """Add a column.

        Args:
            header: the header, possibly of several lines.
            name: the header in one line; by default, its lines joined.
            options: options of :meth:`rich.table.Table.add_column`.
        """
        self._names.append(name or " ".join(header.split("\n")))
        self.add_column(header, **options)

    def needed(self, console: Console, options: ConsoleOptions) -> int:
        """Return the terminal width that shows every word, and every unbreakable cell, without breaking it."""
        broad = options.update_width(BROAD)
        total = super().__rich_measure__(console, broad).minimum
        for column in self.columns:
            if column.no_wrap:
                found = [Measurement.get(console, broad, cell) for cell in (column.header, *column.cells)]
                total += max(one.maximum for one in found) - max(one.minimum for one in found)
        return total

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.needed(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title), "table.title")
        for first, *others in zip_longest(*(column.cells for column in self.columns)):
            yield Text.assemble((f"{self._names[0]} ", "bold"), (str(first), "bold"))
            yield from _lines(self._names[1:], others)
        if self.caption:
            yield Text(str(self.caption), "table.caption")


def _lines(names: Sequence[str], cells: Sequence[RenderableType]) -> RenderResult:
    for name, cell in zip(names, cells, strict=True):
        line = Text.assemble(f"{name}: ", cell if isinstance(cell, Text) else Text(str(cell)))
        yield Padding(line, (0, 0, 0, 2), expand=False)
