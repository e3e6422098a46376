"""Entry point of ``python -m esper.report <folder>…``, which turns runs and sweeps into tables, plots and one page."""

from __future__ import annotations

from esper.launch.begin import start

if __name__ == "__main__":
    raise SystemExit(start("esper.report.cli"))
