"""Figures as SVG embedded in a page, with its font and its light or dark colours, sharp at any size."""

from __future__ import annotations

import io
import re

from esper.views.drawing import Figure, rc_context
from esper.views.palette import INK

THEME = {
    INK.lower(): "var(--ink)",
    "#e4e4e4": "var(--grid)",
    "#aaaaaa": "var(--axis)",
    "#efefef": "var(--empty)",
    "#ffffff": "var(--card)",
}
"""Colours of plots that the page replaces by its own."""

_ID = re.compile(r'(\bid="|url\(#|href="#)')
_FONT = re.compile(r"font-family:[^;\"]*|(font: (?:\w+ )*[\d.]+px) [^;\"]*")


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Convert a figure to an ``<svg>`` element.

    Args:
        figure: figure to draw.
        name: prefix of element ids, unique on the page.
        description: text for screen readers.
    """
    target = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _ID.sub(rf"\g<1>{name}-", text)
    text = _FONT.sub(lambda match: f"{match[1]} var(--font)" if match[1] else "font-family: var(--font)", text)
    for colour, variable in THEME.items():
        text = re.sub(re.escape(colour), variable, text, flags=re.IGNORECASE)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None, "matplotlib writes one"
    head = f'<svg role="img" aria-label="{_quoted(description)}" viewBox="0 0 {size[1]} {size[2]}"'
    return (
        head
        + ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        + text[text.index(">") :]
    )


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
