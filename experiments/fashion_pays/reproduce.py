"""Reproduce the Fashion-MNIST study: ``python -m experiments.fashion_pays.reproduce``, from the repository's root."""

from __future__ import annotations

from esper.config.evaluate import DEFAULT_CONTROLLERS
from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line

STUDY = Study(
    name="fashion_pays",
    words=("+preset=fashion_pays", "env.mapping=matmul"),
    tuned=(("schedule_best", "schedule_per_family", "static_full", "static_best"), ("heuristic",)),
    rivals=tuple(name for name in DEFAULT_CONTROLLERS if not name.startswith("probe")),
    beside=("schedule_best", "schedule_per_family"),
    seeds=3,
    tuning_epochs=20_000,
)

if __name__ == "__main__":
    secure()
    from_command_line(STUDY)
