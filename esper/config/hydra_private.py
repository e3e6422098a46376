"""All of Hydra's private names that Esper uses, in one place, because a new Hydra may move or change them.

Nothing else in Esper imports from ``hydra._internal``.
"""

from __future__ import annotations

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_hydra as run_hydra
from hydra._internal.utils import create_config_search_path, get_args_parser

__all__ = [
    "BasicSweeper",
    "Callbacks",
    "ConfigLoaderImpl",
    "ConfigRepository",
    "Hydra",
    "create_config_search_path",
    "get_args_parser",
    "run_hydra",
]

WRITTEN_FOR = "1.3"
"""Version of Hydra that these names belong to."""
