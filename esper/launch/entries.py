"""Entry points, each with its root configuration and the function that every rank runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from esper.config.evaluate import EvaluateConfig
from esper.config.root import Config
from esper.config.store import CONFIG_NAME

if TYPE_CHECKING:
    from esper.runtime.ranks import Ranks


class Work(Protocol):
    """Type of an entry point's function, which runs on every rank."""

    def __call__(self, config: Any, run_dir: Path, ranks: Ranks) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry point.

    Attributes:
        config_name: name of its root configuration in ``conf/``.
        schema: dataclass of that configuration.
        groups: groups of configuration files that it takes.
        target: module and name of its :class:`Work` function, imported just before it runs.
    """

    config_name: str
    schema: type[Any]
    groups: tuple[str, ...] = ()
    target: tuple[str, str]

    def work(self) -> Work:
        """Import the entry point's function, which takes a while."""
        module, function = self.target
        return cast(Work, getattr(importlib.import_module(module), function))


TRAIN = Entry(
    config_name=CONFIG_NAME,
    schema=Config,
    groups=("preset", "task", "host", "recipe", "debug", "sweep"),
    target=("esper.training.run", "train"),
)
EVALUATE = Entry(config_name="evaluate", schema=EvaluateConfig, target=("esper.evaluation.run", "evaluate"))
ENTRIES = {entry.config_name: entry for entry in (TRAIN, EVALUATE)}
