"""Hook of the web site: docstrings name functions and classes by roles, which Markdown does not know."""

import re

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>)")


def on_page_content(html: str, **named: object) -> str:
    """Remove the names of roles from a page, so that only what they refer to is left."""
    return ROLE.sub("", html)
