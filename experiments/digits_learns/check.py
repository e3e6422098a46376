"""Check that finished digits runs have learned: ``python experiments/digits_learns/check.py outputs/digits-*``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev

from esper.runtime.records import read_jsonl
from esper.runtime.terminal import secure

RIVALS = ("never", "random", "heuristic")


def with_error(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    return mean(values), stdev(values) / len(values) ** 0.5


def row(folder: Path) -> tuple[str, bool]:
    """Format a run as a Markdown table row, and return whether it passes."""
    result = json.loads((folder / "result.json").read_text())
    returns = [record["charts/episodic_return"] for record in read_jsonl(folder / "metrics.jsonl")]
    quarter = len(returns) // 4
    (first, first_error), (last, last_error) = with_error(returns[:quarter]), with_error(returns[-quarter:])
    gain, error = last - first, (first_error**2 + last_error**2) ** 0.5
    table = {entry["name"]: entry for entry in result["controllers"]}
    learned = table["learned"]
    differences = [result["return_differences"][f"learned - {rival}"] for rival in RIVALS]
    passed = gain > 2 * error and all(d["mean"] > 2 * d["sem"] for d in differences[:2])
    passed = passed and learned["wait_share"]["mean"] < 0.95
    cells = [
        str(result["seed"]),
        f"{first:+.2f} → {last:+.2f} ({gain:+.2f} ± {error:.2f})",
        *(f"{d['mean']:+.2f} ± {d['sem']:.2f}" for d in differences),
        *(f"{100 * table[name]['test_accuracy']['mean']:.1f}" for name in ("learned", "never")),
        f"{learned['added_parameters']['mean']:.0f}",
        f"{100 * learned['wait_share']['mean']:.0f} %",
        f"{result['wall_seconds'] / 60:.1f}",
        "yes" if passed else "no",
    ]
    return "| " + " | ".join(cells) + " |", passed


def main() -> None:
    """Print the table; exit with 1 if a run does not pass."""
    rows = [row(Path(folder)) for folder in sys.argv[1:]]
    heads = [
        "run seed",
        "return, first → last quarter",
        *(f"learned − {rival}" for rival in RIVALS),
        "test %, learned",
        "never",
        "added parameters",
        "WAIT",
        "minutes",
        "passes",
    ]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    print("\n".join(line for line, _ in rows))
    raise SystemExit(0 if rows and all(passed for _, passed in rows) else 1)


if __name__ == "__main__":
    secure()
    main()
