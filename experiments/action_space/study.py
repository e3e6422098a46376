"""Turn Esper's learner into MaskablePPO piece by piece: ``python -m experiments.action_space.study``, from the root of
the repository.

Train whatever is missing in ``outputs/surrogate/action_space``, then renew the table of README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import torch

from esper.runtime.terminal import secure
from experiments.surrogate.growth import Instances, oracle_return
from experiments.surrogate.study import ENV_EPOCHS, NUM_HELD_OUT, SEEDS, Run, load, make, train
from experiments.tables import between_markers

PAGE = Path(__file__).with_name("README.md")
GROUP = "action_space"
LENGTH = ENV_EPOCHS // 2
MASKABLE = "MaskablePPO, flat"

CHOICES = (
    "policy.choices.op=[WAIT,GERMINATE,CULL,FOSSILIZE,EXTEND]",
    "policy.choices.style=[LINEAR_ADD]",
    "policy.choices.tempo=[FAST]",
    "policy.choices.alpha_target=[1.0]",
    "policy.choices.alpha_speed=[INSTANT]",
    "policy.choices.alpha_curve=[LINEAR]",
)
"""Overrides for the choices of the flat actions."""
LOGITS = (
    "policy.initial_op_logits.germinate=3.0",
    "policy.initial_op_logits.cull=-3.0",
    "policy.initial_op_logits.fossilize=2.0",
)
"""Overrides for a policy that starts by growing and keeping."""
LEAN = (
    *CHOICES,
    *LOGITS,
    "policy.body=shared",
    "ppo.ratio=per_head",
    "ppo.lr=7e-4",
    "ppo.entropy_multipliers.blueprint=3.0",
)
"""Overrides for the recipe ``lean`` of the presets, but for its greedy rule."""
SETTINGS: dict[str, tuple[str, ...]] = {
    "the preset": (),
    MASKABLE: (),
    "flat's choices": CHOICES,
    "initial op logits": LOGITS,
    "choices and logits": (*CHOICES, *LOGITS),
    "choices, logits, 8 minibatches": (*CHOICES, *LOGITS, "ppo.num_minibatches=8"),
    "the recipe lean": LEAN,
}
"""Settings, each with overrides of the preset; the first is the reference."""


def start(name: str, seed: int) -> Run:
    """Train a setting."""
    if name != MASKABLE:
        return train(SETTINGS[name], seed, LENGTH)
    from experiments.action_space.flat import train_maskable  # needs the extra rl

    return train_maskable(seed, LENGTH)


def row(name: str, oracle: float) -> str:
    """Format a setting as a row of the table."""
    runs, base = ([load(GROUP, setting, seed) for seed in SEEDS] for setting in (name, next(iter(SETTINGS))))
    cells = [name]
    for kind in ("points", "sampled"):
        for look in (0, 1, 3):
            own, other = ([100 * getattr(run.checks[look], kind) / oracle for run in each] for each in (runs, base))
            gaps = [a - b for a, b in zip(own, other, strict=True)]
            gap = "" if runs == base else f" ({mean(gaps):+.0f} ± {stdev(gaps) / len(gaps) ** 0.5:.0f})"
            cells.append(f"{mean(own):.0f}{gap}")
    ends = [run.checks[-1] for run in runs]
    cells.append(", ".join(f"{100 * end.points / oracle:.0f}{' *' if end.one_plan else ''}" for end in ends))
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Make the runs that are missing, then write the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    for seed in SEEDS:
        for name in SETTINGS:
            make(GROUP, name, seed, lambda name=name, seed=seed: start(name, seed))  # type: ignore[misc]
    oracle = oracle_return(Instances.draw(NUM_HELD_OUT, "held_out"))
    looks = ("a quarter", "half", "the end")
    heads = [
        "setting",
        *(f"{kind}, {look}" for kind in ("%", "sampled %") for look in looks),
        "%, by seed (* one plan)",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *(row(name, oracle) for name in SETTINGS)]
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "table", "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
