"""Reproduce the study on hosts with natural variety: ``python -m experiments.natural.reproduce``, from the repository's
root.
"""

from __future__ import annotations

from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line

STUDY = Study(
    name="natural",
    words=("+preset=digits_natural", "env.mapping=matmul"),
    tuned=(("schedule_best", "schedule_per_family", "static_full", "static_best"), ("probe_rule",)),
    rivals=(
        "learned",
        "probe_rule",
        "schedule_best",
        "schedule_per_family",
        "random",
        "never",
        "static_full",
        "static_best",
    ),
    beside=("schedule_best", "probe_rule", "schedule_per_family"),
)

if __name__ == "__main__":
    secure()
    from_command_line(STUDY)
