"""Measure whether controllers of ``digits_arrival`` follow the arrival, after ``reproduce``:
``python -m experiments.digits_arrival.timing``, from the root.

Play each controller greedily on the held-out hosts, and compare the epoch in which the module that is kept germinated
with the epoch in which the classes arrived.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import esper
from esper.config import compose
from esper.controllers import Controller
from esper.envs.growth import GrowthEnv
from esper.evaluation.play import RUN_SEED
from esper.experiment.build import build_experiment
from esper.growth.actions import OP_FOSSILIZE, OP_GERMINATE, Head
from esper.runtime.devices import keep_freed_memory
from esper.runtime.terminal import secure
from experiments.digits_arrival.reproduce import STUDY
from experiments.tables import between_markers

NUM_HOSTS = 64
PARTS = ("early", "middle", "late")

Array = NDArray[np.float64]


def kept_since(controller: Controller, env: GrowthEnv) -> Array:
    """Play an episode, and return the epoch in which the kept module of each host germinated, NaN for none."""
    observation = env.reset()
    begun, kept = (torch.full((env.num_envs,), torch.nan, dtype=torch.float64) for _ in range(2))
    for epoch in range(env.num_epochs):
        actions = controller.act(env.view(observation))
        result = env.step(actions)
        ops = torch.where(result.applied.success, actions[:, Head.OP], -1)
        begun[ops == OP_GERMINATE] = epoch
        kept = torch.where(ops == OP_FOSSILIZE, begun, kept)
        observation = result.observation
    return kept.numpy()


def row(seed: int, arrivals: Array, kept: Array) -> str:
    """Format one controller as a row of the table."""
    some = ~np.isnan(kept)
    arrivals, kept = arrivals[some], kept[some]
    delays = kept - arrivals
    order = np.argsort(arrivals, kind="stable")
    thirds = [f"{kept[third].mean():.1f}" for third in np.array_split(order, len(PARTS))]
    correlation = np.corrcoef(arrivals, kept)[0, 1]
    cells = [str(seed), str(len(kept)), *thirds, f"{correlation:.2f}", f"{np.median(delays):+.0f}"]
    return f"| {' | '.join([*cells, f'{100 * np.mean(delays > 0):.0f}'])} |"


def main() -> None:
    """Measure, and write the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    words = ("+preset=digits_arrival", "env.mapping=matmul", f"evaluation.num_hosts={NUM_HOSTS}")
    experiment = build_experiment(compose(*words))
    pool = experiment.pool("held_out", NUM_HOSTS)
    twins = experiment.twins(NUM_HOSTS, lambda done, total: None)
    heads = ("run seed", "hosts", *(f"germinated in epoch, {part} arrivals" for part in PARTS))
    heads += ("correlation with the arrival", "median epochs after it", "% after it")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for seed in range(STUDY.seeds):
        env = experiment.env(range(NUM_HOSTS), pool, twins, run_seed=RUN_SEED, measure_test=False)
        controller = esper.load_controller(STUDY.job(seed).folder, NUM_HOSTS)
        kept = kept_since(controller, env)
        arrivals = np.array([pool.draw(RUN_SEED, number, 0).arrival for number in range(NUM_HOSTS)], dtype=float)
        lines.append(row(seed, arrivals, kept))
    page = Path(__file__).with_name("README.md")
    page.write_text(between_markers(page.read_text(), "timing", "\n".join(lines)))


if __name__ == "__main__":
    secure()
    main()
