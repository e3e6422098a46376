"""Entry point of ``python -m esper.watch <run folder>``, which follows a run."""

from __future__ import annotations

from esper.launch.begin import start

if __name__ == "__main__":
    raise SystemExit(start("esper.watch.cli"))
