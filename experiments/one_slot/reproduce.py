"""Reproduce the study with a single slot: ``python -m experiments.one_slot.reproduce``, from the repository's root."""

from __future__ import annotations

from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line

STUDY = Study(
    name="one_slot",
    words=(
        "+preset=digits_pays",
        "recipe=full",
        "env.mapping=matmul",
        "slots.num_slots=1",
        "slots.max_developing=1",
        "trainer.num_iterations=40",
    ),
    tuned=(("schedule_best", "schedule_per_family"),),
    rivals=("learned", "schedule_best", "schedule_per_family", "random", "never"),
    beside=("schedule_best", "schedule_per_family"),
    seeds=3,
)

if __name__ == "__main__":
    secure()
    from_command_line(STUDY)
