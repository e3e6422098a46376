"""Follow a run: ``python -m esper.watch <run folder>``."""

from __future__ import annotations

from esper.watch.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
