"""Checks of names that a user chooses from, with suggestions for misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(value: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for a close match among ``choices``, otherwise an empty string."""
    match = difflib.get_close_matches(value, list(choices), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def known(key: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a name that is not among ``choices``.

    Raises:
        ValueError: the name is unknown; the message gives the key, the name and the choices.
    """
    names = list(choices)
    if value not in names:
        raise ValueError(f"{key}: unknown {value!r}{suggestion(value, names)}; choose from {', '.join(names)}")
