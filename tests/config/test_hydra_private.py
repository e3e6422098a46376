"""Esper uses private parts of Hydra: they are listed in one file, and were checked with one version."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import hydra
import pytest

from esper.config import hydra_private
from esper.config.hydra_private import WRITTEN_FOR

PACKAGE = Path(hydra_private.__file__).parents[1]


def test_hydra_is_the_one_that_the_private_names_were_written_for() -> None:
    assert hydra.__version__.startswith(f"{WRITTEN_FOR}."), (
        f"esper/config/hydra_private.py was written for Hydra {WRITTEN_FOR}, this is {hydra.__version__}: "
        "look at each of its names there, then change WRITTEN_FOR"
    )


def test_private_names_are_imported_in_one_file() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith("hydra._internal") for name in names):
                found.add(path.name)
    assert found == {"hydra_private.py"}


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("run_hydra", ["args", "args_parser", "task_function", "config_path", "config_name", "caller_stack_depth"]),
        ("create_config_search_path", ["search_path_dir"]),
        ("get_args_parser", []),
        ("Hydra", ["task_name", "config_loader"]),
        ("Callbacks", ["config"]),
        ("ConfigLoaderImpl", ["config_search_path"]),
        ("ConfigRepository", ["config_search_path"]),
    ],
)
def test_private_functions_take_what_they_took(function: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(hydra_private, function)).parameters) == parameters


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        ("BasicSweeper", "split_arguments"),
        ("ConfigLoaderImpl", "load_configuration"),
        ("ConfigLoaderImpl", "load_sweep_config"),
        ("ConfigLoaderImpl", "_apply_overrides_to_config"),
        ("ConfigLoaderImpl", "_embed_result_config"),
        ("ConfigRepository", "load_config"),
        ("ConfigRepository", "_find_object_source"),
    ],
)
def test_private_methods_that_are_called_or_overridden_are_there(owner: str, method: str) -> None:
    assert callable(getattr(getattr(hydra_private, owner), method))
