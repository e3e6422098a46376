"""Does growing pay? ``make reproduce``, or ``python -m experiments.growth_pays.reproduce`` from the repository's root.

Trains the controllers that are not there yet, evaluates them against every control, and renews the tables and figures
of README.md, and the table of the repository's README.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esper.config.evaluate import DEFAULT_CONTROLLERS
from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line
from experiments.tables import between_markers, interval

STUDY = Study(
    name="growth_pays",
    words=("+preset=digits_pays", "env.mapping=matmul"),
    tuned=(
        ("schedule_best", "schedule_per_family", "static_full", "static_best"),
        ("heuristic",),
        ("probe_rule",),
        ("probe_and_keep",),
    ),
    rivals=DEFAULT_CONTROLLERS,
    beside=("schedule_best", "probe_rule", "schedule_per_family"),
    unseen=("centre_tap_12", "starved_1+centre_tap_2", "starved_0", "label_noise"),
    unseen_rivals=(
        "learned",
        "heuristic",
        "probe_rule",
        "schedule_best",
        "random",
        "never",
        "static_full",
        "static_best",
    ),
    unseen_beside=("schedule_best", "probe_rule", "static_best"),
)


def short_table(result: dict[str, Any]) -> str:
    """Rows of the repository's README."""
    rivals = {
        "learned": "",
        "schedule_per_family": ", an oracle told each host's family",
        "probe_rule": ", tuned rule on the slot probes",
        "schedule_best": ", the best plan for all hosts",
        "heuristic": ", tuned",
        "random": "",
        "never": "",
        "static_full": ", built whole, most accurate",
        "static_best": ", built whole, highest return",
    }
    lines = ["| controller | return | learned − it | test % | added parameters |", "|" + "---|" * 5]
    rows = {row["name"]: row for row in result["controllers"]}
    for name, what in rivals.items():
        row = rows[name]
        cells = [
            f"`{name}`{what}",
            interval(row["episode_return"], "+.1f"),
            interval(row["return_difference"], "+.1f"),
            interval(row["test_accuracy"], ".1f", 100),
            f"{row['added_parameters']['estimate']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    seeds = ", ".join(str(run["seed"]) for run in result["checkpoints"])
    return "\n".join(lines) + f"\n\nCommit `{result['git_sha'][:9]}`, run seeds {seeds}; returns in points of score."


def main() -> None:
    """Make the study, and renew the table of the repository's README."""
    result = from_command_line(STUDY)
    front = Path("README.md")
    front.write_text(between_markers(front.read_text(), "growth_pays", short_table(result)))


if __name__ == "__main__":
    secure()
    main()
