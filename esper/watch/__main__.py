"""Follow a run: ``python -m esper.watch <run folder>``."""

from __future__ import annotations

from esper.launch.begin import start

if __name__ == "__main__":
    raise SystemExit(start("esper.watch.cli"))
