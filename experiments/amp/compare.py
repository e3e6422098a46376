"""Comparison of bf16 and fp32 on digits: ``python -m experiments.amp.compare``, from the root of the repository.

Run whatever is unfinished, one run after the other, then print the tables of README.md.

Runs what is not finished yet, one run after the other, then prints the tables of README.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from esper.growth.stages import REASONS, Reason
from esper.runtime.records import read_jsonl
from esper.runtime.terminal import secure
from experiments.jobs import Job, make

SEEDS = (0, 1, 2)
MODES = ("off", "bf16")
SETTINGS = (
    "+preset=digits",
    "recipe=full",
    "trainer.num_iterations=8",
    "evaluation.controllers=[learned,heuristic,never]",
)
RUNS = Path("outputs/amp")
UNHEALTHY = (Reason.NOT_FINITE, Reason.GRADIENT_UNMEASURED, Reason.GRADIENT_UNHEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one run; accuracies are on the test images of held-out hosts, in per cent.

    ``g2_due`` counts evaluations of gate G2 that did not merely wait for ``min_training_epochs``; ``g2_healthy`` counts
    those among them with measured, finite and healthy gradients, whether or not a place was free.
    """

    seed: int
    amp: str
    non_finite: int
    learned: float
    heuristic: float
    never: float
    never_by_host: tuple[float, ...]
    g2_passed: int
    g2_evaluated: int
    g2_due: int
    g2_healthy: int

    @property
    def g2_share(self) -> float:
        """Passed G2 evaluations in per cent of all."""
        return 100 * self.g2_passed / self.g2_evaluated

    @property
    def healthy_share(self) -> float:
        """Evaluations with healthy gradients in per cent of those due."""
        return 100 * self.g2_healthy / self.g2_due

    def markdown(self) -> str:
        """Format the row as a line of the Markdown table."""
        cells = [
            str(self.seed),
            self.amp,
            str(self.non_finite),
            *(f"{value:.1f}" for value in (self.learned, self.heuristic, self.never)),
            f"{self.g2_passed} / {self.g2_evaluated} = {self.g2_share:.1f} %",
            f"{self.g2_healthy} / {self.g2_due} = {self.healthy_share:.1f} %",
        ]
        return "| " + " | ".join(cells) + " |"


def folder_of(seed: int, amp: str) -> Path:
    """Return the folder of a run."""
    return RUNS / f"{amp}-seed{seed}"


def read(seed: int, amp: str) -> Row:
    """Read the row of a finished run."""
    folder = folder_of(seed, amp)
    result = json.loads((folder / "result.json").read_text())
    metrics, events = read_jsonl(folder / "metrics.jsonl"), read_jsonl(folder / "events.jsonl")
    gates = [event for event in events if event["kind"] == "gate_evaluated" and event["gate"] == "G2"]
    counted = ("charts/non_finite_gradients", "charts/num_crashed", "losses/skipped_minibatches")
    reasons = Counter(gate["reason"] for gate in gates)
    due = len(gates) - reasons[REASONS[Reason.DWELL]]
    accuracy = {entry["name"]: 100 * entry["test_accuracy"]["mean"] for entry in result["controllers"]}
    return Row(
        seed=seed,
        amp=amp,
        non_finite=int(sum(record[name] for record in metrics for name in counted)),
        learned=accuracy["learned"],
        heuristic=accuracy["heuristic"],
        never=accuracy["never"],
        never_by_host=tuple(100 * episode["test_accuracy"] for episode in result["episodes"]["never"]),
        g2_passed=reasons[REASONS[Reason.PASSED]],
        g2_evaluated=len(gates),
        g2_due=due,
        g2_healthy=due - sum(reasons[REASONS[reason]] for reason in UNHEALTHY),
    )


def spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation over seeds."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def main() -> None:
    """Run the missing runs and print the tables."""
    make([Job(folder_of(seed, amp), (*SETTINGS, f"seed={seed}", f"amp={amp}")) for seed in SEEDS for amp in MODES])
    rows = [read(seed, amp) for seed in SEEDS for amp in MODES]
    heads = "run seed | amp | non-finite | test %, learned | heuristic | never | G2 passed / evaluated | healthy / due"
    print(f"| {heads} |\n|" + "---|" * 8)
    print("\n".join(row.markdown() for row in rows))
    print("\n| amp | test %, learned | heuristic | never | G2 passed, % | healthy, % |\n|" + "---|" * 6)
    for amp in MODES:
        of = [row for row in rows if row.amp == amp]
        columns = ("learned", "heuristic", "never", "g2_share", "healthy_share")
        print(f"| {amp} | " + " | ".join(spread([getattr(row, name) for row in of]) for name in columns) + " |")

    full, halved = (next(row.never_by_host for row in rows if row.amp == amp) for amp in MODES)
    differences = [b - a for a, b in zip(full, halved, strict=True)]
    by_host = f"{mean(differences):+.1f} ± {stdev(differences) / len(differences) ** 0.5:.1f} (standard error)"
    print(f"\nnever, {MODES[1]} - {MODES[0]}, host by host: {by_host}")


if __name__ == "__main__":
    secure()
    main()
