"""Shared set-up of all tests: one thread, random numbers by name, a separate cache, a reason for skipped GPU tests."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings

# Read when PyTorch is imported: threads that wait for one another leave the cores to whoever works.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hydra import compose
from omegaconf import DictConfig

from esper.config.hosts import HOST_GROUP
from tests.tiers import beyond_few, resembles_a_fast_one

pytest_plugins = ["command_line", "tests.warm"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests, which stay: it takes a fifth of the time of collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Maps here are tiny: threads cost more than they bring, and float sums must not depend on the machine's cores.
torch.set_num_threads(1)

# Derandomized: a failure in one run is a failure in the next. No deadline: the first example compiles and caches.
settings.register_profile("esper", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("esper")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed every test by its name: a failure in one run is a failure in the next, whichever tests ran before."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is the one that libraries draw from)
    torch.manual_seed(seed)


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """Separate the tests' cache from the user's, in subprocesses too."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ESPER_CACHE_DIR"] = folder
        yield
        del os.environ["ESPER_CACHE_DIR"]


@pytest.fixture(scope="session", autouse=True)
def composed_once() -> Iterator[None]:
    """Compose equal words once in a process: it takes longer than many a test, and files of ``conf`` do not change."""
    composed: dict[object, DictConfig] = {}

    def memoized(name: str, overrides: list[str]) -> DictConfig:
        hosts = tuple((host, id(schema)) for host, schema in HOST_GROUP.items())
        key = (name, tuple(overrides), hosts)
        if key not in composed:
            composed[key] = compose(name, overrides=overrides)
        return composed[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("esper.config.store.hydra_compose", memoized)
        yield


FIRST = (
    "attacks/test_attacks.py",
    "config/test_fields_matter.py",
    "algorithms/test_sanity_worlds.py",
    "pretend_cuda/test_pretend_cuda.py",
    "launch/test_launchers.py",
    "evaluation/test_evaluation.py",
    "examples/test_examples.py",
    "training/test_resume_kills.py",
    "launch/test_spawn.py",
    "benchmarks/test_benchmarks.py",
    "telemetry/test_statistics.py",
    "examples/test_maskable_ppo.py",
    "experiments/test_growing.py",
)
"""Files with the longest tests, which start first so that no process runs one of them at the end."""

NO_CALL = SimpleNamespace(params={})
"""Parameters of a test that has none."""

FIRST_PATHS = [Path(__file__).parent / name for name in FIRST]
assert all(path.exists() for path in FIRST_PATHS), "a file of FIRST has moved"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first; mark slow ones; skip tests marked ``gpu`` where there is none, with a reason."""
    for item in items:
        if resembles_a_fast_one(getattr(item, "callspec", NO_CALL).params.values()):
            item.add_marker(pytest.mark.slow)
    for item in beyond_few(items):
        item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: FIRST_PATHS.index(item.path) if item.path in FIRST_PATHS else len(FIRST))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, none is visible"))
