"""Registries of the things that a configuration can name, Esper's own and users'.

Esper's own entries are given to the constructor; a user's module registers more when it is imported. Registrations made
under :func:`recording` can be undone and repeated, so that each configuration sees the entries of its own plugins only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from esper.runtime.choices import known
from esper.runtime.user_code import named

T = TypeVar("T")

Function = Callable[..., Any]

_WORD = re.compile(r"\w[\w.-]*")


def _itself(entry: Any) -> tuple[Function, ...]:
    return (entry,)


class Registry(Mapping[str, T]):
    """Entries by name, in the order of registration.

    Args:
        kind: kind of entry for messages, such as ``"task"``.
        built_in: Esper's own entries.
        functions: returns the functions of an entry. Entries with the same functions are equal; messages name the
            first.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, T] | None = None,
        *,
        functions: Callable[[T], tuple[Function, ...]] = _itself,
    ) -> None:
        self.kind = kind
        self._entries = dict(built_in or {})
        self._functions = functions

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def register(self, name: str, entry: T) -> None:
        """Add an entry. Registering a function again, as when its module is re-imported, replaces the former one.

        Raises:
            ValueError: a name that is not an identifier or belongs to something else, or an entry that is not a
                function.
        """
        if not isinstance(name, str) or not _WORD.fullmatch(name):
            raise ValueError(f"{self.kind} {name!r}: a name is made of letters, digits, dots, dashes and underscores")
        if not all(map(callable, self._functions(entry))):
            raise ValueError(f"{self.kind} {name!r} must be a function, got {entry!r}")
        there = self._entries.get(name, entry)
        if there is not entry and not all(map(_same, self._functions(there), self._functions(entry))):
            raise ValueError(
                f"there is a {self.kind} {name!r} already, {self.where(there)}: choose another name for "
                f"{self.where(entry)}"
            )
        if _recorded is not None:
            _recorded.append(Registration(self, name, entry, self._entries.get(name)))
        self._entries[name] = entry

    def find(self, name: str, key: str | None = None) -> T:
        """Return the entry with a name.

        Args:
            name: name of the entry.
            key: key of the configuration that holds the name.

        Raises:
            ValueError: unknown name; lists the choices.
        """
        known(key or self.kind, name, self)
        return self._entries[name]

    def where(self, entry: T) -> str:
        """Return module and name of the first of an entry's functions."""
        return named(self._functions(entry)[0])


@dataclass(frozen=True, slots=True)
class Registration(Generic[T]):
    """A registered entry, and the entry that had its name before."""

    registry: Registry[T]
    name: str
    entry: T
    before: T | None

    def again(self) -> None:
        """Repeat the registration.

        Raises:
            ValueError: by now something else has that name.
        """
        self.registry.register(self.name, self.entry)

    def undo(self) -> None:
        """Restore the former entry; the latest registration must be undone first."""
        if self.before is None:
            self.registry._entries.pop(self.name, None)
        else:
            self.registry._entries[self.name] = self.before


_recorded: list[Registration[Any]] | None = None


@contextmanager
def recording() -> Iterator[list[Registration[Any]]]:
    """Record all registrations made within the block, in all registries; undo them if the block fails."""
    global _recorded
    outer, _recorded = _recorded, []
    noted = _recorded
    try:
        yield noted
    except BaseException:
        for registration in reversed(noted):
            registration.undo()
        raise
    finally:
        _recorded = outer


def _same(one: Function, other: Function) -> bool:
    """Return whether two functions are the same, possibly from a module that was run twice."""
    name = getattr(one, "__qualname__", "<none>")
    return one is other or (named(one) == named(other) and "<" not in name and hasattr(other, "__qualname__"))
