"""Entry points: which configuration each composes, and the function that each rank of it runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from esper.config.evaluate import EvaluateConfig
from esper.config.root import Config
from esper.config.store import CONFIG_NAME
from esper.runtime.ranks import Ranks


class Work(Protocol):
    """What an entry point does on one rank."""

    def __call__(self, config: Any, run_dir: Path, ranks: Ranks) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry point.

    Attributes:
        config_name: its root configuration in ``conf/``.
        schema: dataclass of that configuration.
        target: module and function of its :class:`Work`, imported when it is about to run.
    """

    config_name: str
    schema: type[Any]
    target: tuple[str, str]

    def work(self) -> Work:
        """The function; importing it takes a while."""
        module, function = self.target
        return cast(Work, getattr(importlib.import_module(module), function))


TRAIN = Entry(config_name=CONFIG_NAME, schema=Config, target=("esper.training.run", "train"))
EVALUATE = Entry(config_name="evaluate", schema=EvaluateConfig, target=("esper.evaluation.run", "evaluate"))
ENTRIES = {entry.config_name: entry for entry in (TRAIN, EVALUATE)}
