"""Measure the information in slot probes: ``python -m experiments.probes.study``, from the repository's root.

Observe hosts of ``digits_pays`` for a few epochs without growing; a linear classifier then predicts the family of a
host from some of the probes. It learns from the training instances and is tested on the held-out ones. Write the table
of README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esper.config import compose
from esper.controllers import Never
from esper.envs.features import feature_table
from esper.envs.instances import InstancePool
from esper.experiment.build import Experiment, build_experiment
from esper.population import PROBE_NAMES
from esper.runtime.provenance import environment_info
from esper.runtime.terminal import secure
from experiments.tables import between_markers

README = Path(__file__).parent / "README.md"
EPOCHS = (0, 1, 2, 4, 8)
"""Epochs at which the classifier predicts; 0 is before any training."""
ACCURACY = "val_accuracy"
NUM_HELD_OUT = 64


def watch(experiment: Experiment, split: str, count: int) -> tuple[np.ndarray, list[str]]:
    """Return observations after each of :data:`EPOCHS`, ``[len(EPOCHS), count, D]``, and the family of each host."""
    instances = experiment.pool(split, count).instances
    env = experiment.env(range(count), InstancePool(instances, assigned=True), None, run_seed=0, measure_test=False)
    controller, observation, seen = Never(), env.reset(), []
    for epoch in range(max(EPOCHS) + 1):
        if epoch in EPOCHS:
            seen.append(observation.features.numpy().copy())
        observation = env.step(controller.act(env.view(observation))).observation
    return np.stack(seen), [instance.family for instance in instances]


def columns(names: Sequence[str]) -> list[int]:
    """Return the columns of an observation that hold these probes (of all slots), or the accuracy."""
    return [
        feature.index for feature in feature_table(3, PROBE_NAMES) if feature.name.rsplit(".", maxsplit=1)[-1] in names
    ]


def accuracy(train: tuple[np.ndarray, list[str]], held_out: tuple[np.ndarray, list[str]], names: Sequence[str]) -> str:
    """Format the share of held-out hosts whose family is classified correctly, in %, at each epoch."""
    cells = []
    for number in range(len(EPOCHS)):
        kept = columns(names)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=10.0, max_iter=2000))
        model.fit(train[0][number][:, kept], train[1])
        cells.append(f"{100 * model.score(held_out[0][number][:, kept], held_out[1]):.0f}")
    return " | ".join(cells)


def main() -> None:
    """Run the study and write the table."""
    torch.set_num_threads(1)
    config = compose("+preset=digits_pays", "env.mapping=matmul", "reward.twin=none")
    experiment = build_experiment(config)
    train = watch(experiment, "train", config.instances.num_train)
    held_out = watch(experiment, "held_out", NUM_HELD_OUT)
    sets: dict[str, tuple[str, ...]] = {
        "accuracy alone": (ACCURACY,),
        "all probes": PROBE_NAMES,
        "all probes, accuracy": (*PROBE_NAMES, ACCURACY),
        **{f"{name} alone": (name,) for name in PROBE_NAMES},
        **{f"all but {name}": tuple(other for other in PROBE_NAMES if other != name) for name in PROBE_NAMES},
    }
    most = max(held_out[1].count(family) for family in set(held_out[1]))
    lines = [f"| what it sees | {' | '.join(f'epoch {epoch}' for epoch in EPOCHS)} |", "|" + "---|" * (len(EPOCHS) + 1)]
    lines += [f"| {name} | {accuracy(train, held_out, names)} |" for name, names in sets.items()]
    facts = (
        f"Commit `{environment_info()['git_sha'][:9]}`, {len(train[1])} training hosts, {len(held_out[1])} held-out "
        f"hosts of {len(set(held_out[1]))} families; always naming the most frequent is right for "
        f"{100 * most / len(held_out[1]):.0f} %."
    )
    text = between_markers(README.read_text(), "table", "\n".join(lines))
    README.write_text(between_markers(text, "facts", facts))
    print("\n".join(lines))


if __name__ == "__main__":
    secure()
    main()
