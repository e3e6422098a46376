"""Shared by all tests: one thread, reproducible property tests, a cache of their own, a reason for no GPU test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["command_line"]

# Maps here are tiny: threads cost more than they bring, and float sums must not depend on the machine's cores.
torch.set_num_threads(1)

# Derandomized: a failure in one run is a failure in the next. No deadline: the first example compiles and caches.
settings.register_profile("esper", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("esper")


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """Nothing that a user's runs have measured reaches a test, and the other way round; subprocesses inherit it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ESPER_CACHE_DIR"] = folder
        yield
        del os.environ["ESPER_CACHE_DIR"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none, with a reason."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, none is visible"))
