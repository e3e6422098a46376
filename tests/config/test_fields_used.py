"""No field without effect: something outside of configuration reads each one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import esper
from esper.config import Config
from esper.config.learning import EntropyMultipliers

PACKAGE = Path(esper.__file__).parent
SOURCE = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "config" not in path.parents)


# Read by configuration itself: what a plugin registers has to be known before other keys are checked.
READ_ON_LOADING = {"plugins"}


def fields(section: object) -> Iterator[str]:
    for item in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, EntropyMultipliers):  # read as one, head by head
            yield from fields(value)
        yield item.name


@pytest.mark.parametrize("name", sorted(set(fields(Config())) - READ_ON_LOADING))
def test_every_field_is_read_somewhere(name: str) -> None:
    assert re.search(rf"\.{name}\b", SOURCE), f"nothing in esper/ reads .{name}"
