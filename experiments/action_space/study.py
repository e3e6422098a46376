"""Turn Esper's learner into MaskablePPO piece by piece: ``python -m experiments.action_space.study``, from the root of
the repository.

Train whatever is missing in ``outputs/surrogate/action_space``, then renew the tables of README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from esper.policy import Normaliser
from esper.runtime.terminal import secure
from experiments.surrogate.growth import Instances, oracle_return
from experiments.surrogate.study import ENV_EPOCHS, NUM_HELD_OUT, SEEDS, Run, load, make, train
from experiments.tables import between_markers

PAGE = Path(__file__).with_name("README.md")
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
NO_MEMORY = "no memory"
RAW = "observations as they are"
PASSES = ("ppo.update_epochs=10", "ppo.target_kl=null")
RATE = ("ppo.lr=3e-4", "ppo.anneal_lr=false")
NO_BONUS = ("ppo.ent_coef=0.0", "ppo.ent_coef_final=0.0")
NARROW = (
    *("policy.encoder_dim=64", "policy.lstm_dim=64", "policy.head_dim=64", "policy.value_dim=64"),
    "policy.blueprint_head_dims=[64]",
)
REFERENCE = "the preset"
TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "action_space": {
        REFERENCE: (),
        MASKABLE: (),
        "flat's choices": CHOICES,
        "initial op logits": LOGITS,
        "choices and logits": (*CHOICES, *LOGITS),
        "choices, logits, 8 minibatches": (*CHOICES, *LOGITS, "ppo.num_minibatches=8"),
        "the recipe lean": LEAN,
    },
    "pieces": {
        REFERENCE: (),
        NO_MEMORY: (),
        "widths of 64": NARROW,
        "12 minibatches": ("ppo.num_minibatches=12",),
        "10 passes, no stop": PASSES,
        "no entropy bonus": NO_BONUS,
        "learning rate 3e-4": RATE,
        RAW: (),
    },
}
"""Settings by table, each with overrides of the preset; the first is the reference."""


def start(overrides: Sequence[str], name: str, seed: int) -> Run:
    """Train a setting."""
    if name == MASKABLE:
        from experiments.action_space.flat import train_maskable  # needs the extra rl

        return train_maskable(seed, LENGTH)
    with {NO_MEMORY: no_memory, RAW: raw_observations}.get(name, nullcontext)():
        return train(overrides, seed, LENGTH)


@contextmanager
def no_memory() -> Iterator[None]:
    """Let every step of an LSTM start from a state of zeros."""
    whole = nn.LSTM.forward

    def forget(lstm: nn.LSTM, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        output, _ = whole(lstm, x.reshape(-1, 1, x.shape[-1]))
        return output.reshape(*x.shape[:2], -1), state

    with patch.object(nn.LSTM, "forward", forget):
        yield


@contextmanager
def raw_observations() -> Iterator[None]:
    """Let normalisers learn nothing, so that they change nothing."""
    with patch.object(Normaliser, "merge", lambda normaliser, moments: None):
        yield


def row(group: str, name: str, oracle: float) -> str:
    """Format a setting as a row of its table."""
    runs, base = ([load(group, setting, seed) for seed in SEEDS] for setting in (name, REFERENCE))
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


def table(group: str, oracle: float) -> str:
    """Format a table."""
    looks = ("a quarter", "half", "the end")
    heads = [
        "setting",
        *(f"{kind}, {look}" for kind in ("%", "sampled %") for look in looks),
        "%, by seed (* one plan)",
    ]
    rows = [row(group, name, oracle) for name in TABLES[group]]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])


def main() -> None:
    """Make the runs that are missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=tuple(TABLES), help="tables to renew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for group in options.tables:
        for seed in SEEDS:
            for name, words in TABLES[group].items():
                make(group, name, seed, lambda words=words, name=name, seed=seed: start(words, name, seed))  # type: ignore[misc]
    oracle = oracle_return(Instances.draw(NUM_HELD_OUT, "held_out"))
    text = PAGE.read_text(encoding="utf-8")
    for group in options.tables:
        text = between_markers(text, group, table(group, oracle))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    secure()
    main()
