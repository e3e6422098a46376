"""Compare learned controllers of ``digits_arrival`` with the best fixed schedule and a rule that follows the arrival:
``python -m experiments.digits_arrival.reproduce``, from the repository's root.
"""

from __future__ import annotations

from esper.runtime.terminal import secure
from experiments.growing import Study, from_command_line

STUDY = Study(
    name="digits_arrival",
    words=("+preset=digits_arrival", "env.mapping=matmul"),
    tuned=(("schedule_best",),),
    rivals=("learned", "risen_loss", "best_epoch", "schedule_best", "random", "never"),
    beside=("risen_loss", "best_epoch", "schedule_best"),
    plugins=("experiments.digits_arrival.rivals",),
)

if __name__ == "__main__":
    secure()
    from_command_line(STUDY)
