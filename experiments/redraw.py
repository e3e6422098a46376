"""Draw the pictures of the studies anew from their tables, as ``python -m experiments.redraw``.

Frontiers come from ``controllers.csv`` and learning curves from ``curves.csv``, where a study has them, so that all
pictures look alike after the looks have changed. What was kept by family is drawn by an evaluation only.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from esper.telemetry.statistics import Interval
from esper.views.frontier_plot import FrontierPoint, frontier
from experiments.growing import learning_curves

STUDIES = Path(__file__).parent


def redraw(folder: Path) -> list[Path]:
    """Draw what a study's tables suffice for, and return the pictures."""
    drawn = []
    controllers = _rows(folder / "controllers.csv")
    if controllers and (folder / "frontier.png").exists():
        points = [
            FrontierPoint(
                name=row["name"], cost=_interval(row, "added_parameters"), score=_interval(row, "test_accuracy")
            )
            for row in controllers
        ]
        drawn.append(folder / "frontier.png")
        frontier(points, drawn[-1])
    runs = _rows(folder / "curves.csv")
    if controllers and runs and (folder / "learning_curves.png").exists():
        rows: list[dict[str, Any]] = [
            {
                "run": int(row["run"]),
                "env_epochs": int(row["env_epochs"]),
                "episodic_return": float(row["episodic_return"] or "nan"),
            }
            for row in runs
        ]
        drawn.append(folder / "learning_curves.png")
        learning_curves(rows, {row["name"]: float(row["episode_return"]) for row in controllers}, drawn[-1])
    return drawn


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _interval(row: dict[str, str], name: str) -> Interval:
    low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
    return Interval(estimate=float(row[name]), low=low, high=high, over_runs=int(row["num_runs"]) > 1)


if __name__ == "__main__":
    for study in sorted(path for path in STUDIES.iterdir() if path.is_dir()):
        for picture in redraw(study):
            print(picture.relative_to(STUDIES.parent))
