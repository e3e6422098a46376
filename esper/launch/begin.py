"""Start of an entry point's process: listen for signals before slow imports begin."""

from __future__ import annotations

import importlib

from esper.runtime import waiting
from esper.runtime.preemption import leave_on_request


def begin() -> None:
    """Handle signals from now on, and keep output errors from ending this process."""
    leave_on_request()
    waiting.begin()
    from esper.runtime.terminal import secure

    secure()


def start(module: str) -> object:
    """Call :func:`begin`, then ``main`` of a module; return its exit code."""
    begin()
    return importlib.import_module(module).main()


def train() -> object:
    """Entry point of the command ``esper-train``."""
    return start("esper.train")


def evaluate() -> object:
    """Entry point of the command ``esper-evaluate``."""
    return start("esper.evaluate")


def export() -> object:
    """Entry point of the command ``esper-export``."""
    return start("esper.export")


def report() -> object:
    """Entry point of the command ``esper-report``."""
    return start("esper.report.cli")


def watch() -> object:
    """Entry point of the command ``esper-watch``."""
    return start("esper.watch.cli")


def dashboard() -> object:
    """Entry point of the command ``esper-dashboard``."""
    return start("esper.dashboard")
