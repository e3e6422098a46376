"""Turn runs and sweeps into tables, plots and one page: ``python -m esper.report <folder>…``."""

from __future__ import annotations

from esper.launch.begin import start

if __name__ == "__main__":
    raise SystemExit(start("esper.report.cli"))
