"""Reproduce the study of pairs, in which a module pays only beside another.

``python -m experiments.scaffold.reproduce``, from the repository's root.
"""

from __future__ import annotations

from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line

FAMILIES = {
    "starved_2+centre_tap_01": 2.0,
    "starved_2": 1.0,
    "intact": 1.0,
    "few_classes": 0.0,
    "centre_tap_all": 0.0,
    "starved_0+centre_tap_12": 0.0,
    "starved_1+centre_tap_12": 0.0,
}
"""Weights of the host families in this study, with zeros for the preset's other families."""

WORDS = (
    "+preset=digits_pays",
    "recipe=full",
    "env.mapping=matmul",
    "env.num_epochs=50",
    "env.steps_per_epoch=6",
    "slots.max_seeds=2",
    f"+instances.families={{{', '.join(f'{name}: {weight}' for name, weight in FAMILIES.items())}}}",
)

STUDY = Study(
    name="scaffold",
    words=(*WORDS, "trainer.num_iterations=50"),
    tuned=(("schedule_best",), ("schedule_per_family",)),
    rivals=("learned", "schedule_best", "schedule_per_family", "random", "never", "static_final"),
    beside=("schedule_best", "schedule_per_family"),
    seeds=2,
    tuning_epochs=20_000,
)

if __name__ == "__main__":
    secure()
    from_command_line(STUDY)
