"""Provenance of a result: commit, versions, platform, device."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import esper

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "scikit-learn", "matplotlib", "rich")


def environment_info(device: str = "cpu") -> dict[str, Any]:
    """Provenance of a result: commit, versions, platform, device, threads.

    ``git_sha`` and ``git_dirty`` are ``None`` when this package is not tracked by a git checkout; a version is
    ``None`` when the package is not installed.
    """
    sha, dirty = _git_state()
    return {
        "git_sha": sha,
        "git_dirty": dirty,
        "versions": {
            "python": platform.python_version(),
            "esper": esper.__version__,
            **{name: _version(name) for name in PACKAGES},
        },
        "platform": platform.platform(),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "num_threads": torch.get_num_threads(),
        "num_cpus": os.cpu_count(),
        "command": sys.argv,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state() -> tuple[str | None, bool | None]:
    # A wheel inside another project's checkout must not report its commit, so this very file must be tracked.
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None
    sha, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return sha, None if changes is None else changes != ""


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
