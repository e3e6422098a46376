"""Begin the process of an entry point: listen for signals before anything is imported that takes long."""

from __future__ import annotations

import importlib

from esper.runtime.preemption import leave_on_request


def begin() -> None:
    """Heed requests to end from now on, and let nothing that is said end this process."""
    leave_on_request()
    from esper.runtime.terminal import secure

    secure()


def start(module: str) -> object:
    """Begin, and do what ``main`` of a module does; returns its exit code."""
    begin()
    return importlib.import_module(module).main()


def train() -> object:
    """``esper-train``."""
    return start("esper.train")


def evaluate() -> object:
    """``esper-evaluate``."""
    return start("esper.evaluate")


def report() -> object:
    """``esper-report``."""
    return start("esper.report.cli")


def watch() -> object:
    """``esper-watch``."""
    return start("esper.watch.cli")
