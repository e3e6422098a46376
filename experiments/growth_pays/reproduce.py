"""Reproduce the main study: ``make reproduce``, or ``python -m experiments.growth_pays.reproduce``, from the
repository's root.

Train missing controllers, evaluate them against every control, and renew the tables and figures of README.md, and the
short tables of the repository's README and of the index of studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.config.evaluate import DEFAULT_CONTROLLERS
from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line
from experiments.tables import between_markers, interval

STUDY = Study(
    name="growth_pays",
    words=("+preset=digits_pays", "recipe=full", "env.mapping=matmul"),
    tuned=(
        ("schedule_best", "schedule_per_family", "static_full", "static_best"),
        ("heuristic",),
        ("probe_rule",),
        ("probe_and_keep",),
    ),
    rivals=(*DEFAULT_CONTROLLERS, "one_bit", "no_bit"),
    plugins=("experiments.growth_pays.simple",),
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


WHAT = {
    "learned": "the policy that PPO has learned",
    "one_bit": "a rule: slot 2 if it is starved, else slot 1",
    "probe_rule": "a rule on the slot probes, tuned",
    "schedule_per_family": "the best plan of each family",
    "schedule_best": "the best plan for all hosts",
    "heuristic": "grows on a plateau, tuned",
    "random": "legal actions at random",
    "never": "the host alone",
    "static_full": "built whole, most accurate",
    "static_best": "built whole, highest return",
}
"""Rows of the table in the index of studies, and their descriptions."""
PAGES = {
    Path("README.md"): ("learned", "one_bit", "schedule_best", "static_best", "never"),
    Path("experiments/README.md"): tuple(WHAT),
}
"""Pages outside the study that show some rows of its table."""


def short_table(result: dict[str, Any], names: Sequence[str]) -> str:
    """Format some rows of the table of controllers for another page."""
    lines = ["| controller | return | learned − it | test % | added parameters |", "|" + "---|" * 5]
    rows = {row["name"]: row for row in result["controllers"]}
    for name in names:
        row = rows[name]
        cells = [
            f"`{name}`, {WHAT[name]}",
            interval(row["episode_return"], "+.1f"),
            interval(row["return_difference"], "+.1f"),
            interval(row["test_accuracy"], ".1f", 100),
            f"{row['added_parameters']['estimate']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the study and renew the tables of the pages outside it."""
    result = from_command_line(STUDY)
    for page, names in PAGES.items():
        page.write_text(between_markers(page.read_text(), STUDY.name, short_table(result, names)))


if __name__ == "__main__":
    secure()
    main()
